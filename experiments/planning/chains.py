"""Collectives that a TPU's compiler carries through a chain of fusions, which compute meanwhile.

Each fusion of a chain has the collective inside, and its operand and its output among its own
operands and outputs, as if it moved everything again. It is one collective: it starts in a fusion
around `AsyncCollectiveStart`, where its operand is read, and ends in one around
`AsyncCollectiveDone`, where its output is there.
"""

from experiments.planning.hlo import Computation, Instruction, Module

_IN_CHAIN = "chain_id="
_START = 'custom_call_target="AsyncCollectiveStart"'
_DONE = 'custom_call_target="AsyncCollectiveDone"'


def is_counted_elsewhere(collective: Instruction, computation: Computation) -> bool:
  """Returns whether a collective inside a fusion is of a chain that does not end there."""
  return _IN_CHAIN in collective.attributes and not _reaches(collective, computation, _DONE)


def is_end(module: Module, instruction: Instruction) -> bool:
  """Returns whether an instruction is a fusion that starts or ends a chain."""
  return instruction.opcode == "fusion" and any(
      _START in inner.attributes or _DONE in inner.attributes
      for inner in module.computations[instruction.called[0]].by_name.values())


def reads_nothing(user: Instruction, computation: Computation) -> bool:
  """Returns whether a user of a fusion's operand only hands it on to the chain's next fusion."""
  if _IN_CHAIN in user.attributes:
    return not _reaches(user, computation, _START)
  return _DONE in user.attributes or (user is computation.root and user.opcode == "tuple"
                                      and _in_chain(computation))


def writes_nothing(value: Instruction, computation: Computation) -> bool:
  """Returns whether a fusion's output is only handed on, or is of a collective that ends later."""
  return _START in value.attributes or _IN_CHAIN in value.attributes or (
      value.opcode == "parameter" and _in_chain(computation))


def _reaches(value: Instruction, computation: Computation, target: str) -> bool:
  """Returns whether a custom call of `target` reads a value, or what is made of it."""
  return any(target in user.attributes or _reaches(user, computation, target)
             for user, _ in computation.users[value.name])


def _in_chain(computation: Computation) -> bool:
  return any(_IN_CHAIN in instruction.attributes for instruction in computation.by_name.values())
