"""Reads a compiled program's text: instructions by computation, and how often each one runs.

A loop's body is in the text once. Its trip count is given with it (`known_trip_count`, CPU and GPU)
or follows from its condition (TPU), unless the condition depends on data.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator

from experiments.planning.hlo_shapes import Buffer, buffers

_NAME = re.compile(r"%[\w.\-]+")
_CALLED = re.compile(r"\b(?:calls|body|condition|to_apply|true_computation|false_computation)="
                     r"(%[\w.\-]+)|\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"?known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*[:=]\s*"?(\d+)')
_ROOT_INDEX = re.compile(r"\bindex=(\d+)")
_THROUGH = ("bitcast", "copy", "convert", "reshape", "broadcast")


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: with its leading %.
    opcode: such as `fusion`.
    buffers: its outputs; one, or several of a tuple.
    operands: names.
    inside: the text between the parentheses, a constant's value or a parameter's number.
    attributes: the text after them.
    called: computations that it names, such as a loop's body.
    is_root: whether it is the value of its computation.
  """

  name: str
  opcode: str
  buffers: tuple[Buffer, ...]
  operands: tuple[str, ...]
  inside: str
  attributes: str
  called: tuple[str, ...]
  is_root: bool

  @property
  def size(self) -> int:
    """Bytes of everything that it makes."""
    return sum(buffer.size for buffer in self.buffers)

  def attribute(self, key: str) -> str | None:
    """Returns the name after `key=`, or None."""
    match = re.search(rf"\b{key}=(%?[\w.\-]+)", self.attributes)
    return match[1] if match else None


class Computation:
  """Instructions by name, in order."""

  def __init__(self, instructions: list[Instruction]):
    self.by_name = {instruction.name: instruction for instruction in instructions}
    self.root = next((i for i in instructions if i.is_root), instructions[-1])

  @functools.cached_property
  def users(self) -> dict[str, list[tuple[Instruction, int]]]:
    """For each name, the instructions that read it and the operand that it is."""
    users_of: dict[str, list[tuple[Instruction, int]]] = {name: [] for name in self.by_name}
    for instruction in self.by_name.values():
      for position, operand in enumerate(instruction.operands):
        users_of.setdefault(operand, []).append((instruction, position))
    return users_of

  @functools.cached_property
  def parameters(self) -> dict[int, Instruction]:
    """Parameters by their number."""
    return {int(i.inside): i for i in self.by_name.values() if i.opcode == "parameter"}


@dataclasses.dataclass(frozen=True)
class Visit:
  """An instruction that runs.

  Attributes:
    times: how often, in one run of the program or, inside a loop of unknown trips, in one trip.
    loop: the number of that loop in the program's order, or None.
  """

  instruction: Instruction
  computation: Computation
  times: float
  loop: int | None


class Module:
  """A compiled program."""

  def __init__(self, computations: dict[str, Computation], entry: str):
    self.computations, self.entry = computations, entry

  def visits(self) -> tuple[list[Visit], int, list[str]]:
    """Returns (what runs, loops whose trips are unknown, names of further such loops inside them).

    A conditional runs its branch that makes the most bytes.
    """
    walk = _Walk(self)
    return walk.computation(self.entry, 1.0, None), walk.loops, walk.nested


class _Walk:

  def __init__(self, module: Module):
    self.module = module
    self.loops, self.nested = 0, []

  def computation(self, name: str, times: float, loop: int | None) -> list[Visit]:
    computation, out = self.module.computations[name], []
    for instruction in computation.by_name.values():
      out.append(Visit(instruction, computation, times, loop))
      if instruction.opcode == "while":
        out += self._loop(instruction, computation, times, loop)
      elif instruction.opcode == "conditional":
        out += self._branch(instruction, times, loop)
      elif instruction.opcode == "call":
        out += self.computation(instruction.called[0], times, loop)
    return out

  def _loop(self, instruction, computation, times: float, loop: int | None) -> list[Visit]:
    count, body = trips(self.module, computation, instruction), instruction.attribute("body")
    if count is None and loop is None:
      loop, self.loops, times = self.loops, self.loops + 1, 1.0
    elif count is None:
      self.nested.append(instruction.name)
    return self.computation(body, times * (1 if count is None else count), loop)

  def _branch(self, instruction, times: float, loop: int | None) -> list[Visit]:
    branches = [self.computation(name, times, loop) for name in instruction.called]
    return max(branches, key=_written_bytes)


def _written_bytes(visits: list[Visit]) -> float:
  return sum(visit.times * visit.instruction.size for visit in visits)


def parse(text: str) -> Module:
  """Reads `compiled.as_text()`."""
  computations, entry, lines, name = {}, "", [], ""
  for line in text.splitlines():
    if line[:1] in ("%", "E") and line.rstrip().endswith("{"):
      name, lines = _NAME.search(line)[0], []
      entry = name if line.startswith("ENTRY") else entry
    elif line.startswith("}") and lines:
      computations[name] = Computation(lines)
    elif " = " in line and line.startswith(" "):
      lines.append(_instruction(line.strip()))
  return Module(computations, entry)


def _instruction(line: str) -> Instruction:
  lhs, rhs = line.split(" = ", 1)
  end = _closing(rhs) if rhs.startswith("(") else rhs.index(" ")
  shape, body = rhs[:end], rhs[end:].lstrip()
  opcode, begin = body[:body.index("(")], body.index("(")
  last = begin + _closing(body[begin:])
  inside, attributes = body[begin + 1:last - 1], body[last:]
  called = []
  for single, several in _CALLED.findall(attributes):
    called += [single] if single else _NAME.findall(several)
  return Instruction(lhs.removeprefix("ROOT "), opcode, buffers(shape),
                     tuple(_NAME.findall(inside)), inside, attributes, tuple(called),
                     lhs.startswith("ROOT "))


def _closing(text: str) -> int:
  """Returns the index after the parenthesis that closes the one at 0."""
  depth = 0
  for match in re.finditer(r"[()]", text):
    depth += 1 if match[0] == "(" else -1
    if depth == 0:
      return match.end()
  raise ValueError(f"an open parenthesis in {text[:80]!r}")


def trips(module: Module, computation: Computation, loop: Instruction) -> int | None:
  """Returns the number of trips of a loop, or None if it depends on data."""
  match = _TRIPS.search(loop.attributes)
  if match:
    return int(match[1])
  condition = module.computations[loop.attribute("condition")]
  compared = _loop_condition(module, condition, condition.root, ())
  if compared is None:
    return None
  (counter, bound, slack) = compared
  if not isinstance(bound, int):
    bound = _start(computation, loop, bound)
  start, step = _start(computation, loop, counter), _step(module, loop, counter)
  if bound is None:
    return None
  return max(0, -(-(bound + slack - (start or 0)) // step))


def _loop_condition(module, computation, instruction, arguments):
  """Returns (index of the counter, bound or its index, 1 if the bound is reached) of a condition,
  or None.

  Args:
    arguments: the arguments that a called computation's parameters get.
  """
  if instruction.opcode == "fusion":
    operands = [_value(computation, name, arguments) for name in instruction.operands]
    inner = module.computations[instruction.called[0]]
    return _loop_condition(module, inner, inner.root, operands)
  if instruction.opcode != "compare":
    return None
  lhs, rhs = (_value(computation, name, arguments) for name in instruction.operands)
  direction = instruction.attribute("direction")
  if direction in ("GT", "GE"):
    lhs, rhs, direction = rhs, lhs, {"GT": "LT", "GE": "LE"}[direction]
  if direction not in ("LT", "LE", "NE") or not isinstance(lhs, tuple) or rhs is None:
    return None
  bound = rhs[0] if isinstance(rhs, tuple) else rhs
  if isinstance(rhs, tuple):
    return None if rhs == lhs else (lhs[0], rhs, int(direction == "LE"))
  return lhs[0], bound, int(direction == "LE")


def _value(computation: Computation, name: str, arguments=()):
  """Returns an int for a constant, (index,) for an entry of the loop's state, else None."""
  instruction = computation.by_name.get(name)
  while instruction is not None and instruction.opcode in _THROUGH:
    instruction = computation.by_name.get(instruction.operands[0])
  if instruction is None:
    return None
  if instruction.opcode == "constant":
    return int(instruction.inside) if re.fullmatch(r"-?\d+", instruction.inside) else None
  if instruction.opcode == "get-tuple-element":
    return (int(_ROOT_INDEX.search(instruction.attributes)[1]),)
  if instruction.opcode == "parameter" and arguments:
    return arguments[int(instruction.inside)]
  return None


def _start(computation: Computation, loop: Instruction, index) -> int | None:
  """Returns the value with which an entry of the loop's state begins, if it is a constant."""
  index = index[0] if isinstance(index, tuple) else index
  state = computation.by_name.get(loop.operands[0])
  if state is None or state.opcode != "tuple":
    return None
  value = _value(computation, state.operands[index])
  return value if isinstance(value, int) else None


def _step(module: Module, loop: Instruction, index: int) -> int:
  """Returns the increment of the counter in one trip; 1 where it cannot be read."""
  body = module.computations[loop.attribute("body")]
  if body.root.opcode != "tuple":
    return 1
  new = body.by_name.get(body.root.operands[index])
  if new is None or new.opcode != "add":
    return 1
  steps = [value for value in (_value(body, name) for name in new.operands)
           if isinstance(value, int) and value > 0]
  return steps[0] if steps else 1


def inner(module: Module, instruction: Instruction) -> Iterator[tuple[Instruction, Computation]]:
  """Yields all instructions of the computations that a fusion or an asynchronous start names."""
  for name in instruction.called:
    computation = module.computations.get(name)
    for nested in computation.by_name.values() if computation else ():
      yield nested, computation
      if nested.opcode in ("fusion", "call", "async-start"):
        yield from inner(module, nested)
