"""Memory traffic of a compiled program: what each instruction reads and writes.

One rule for all targets: an instruction reads its operands and writes its output. Control flow,
tuples, parameters, constants and bitcasts cost nothing. A slice or a gather reads as much as it
returns, and an update of a slice writes the slice; inside a fusion too. What a fusion hands on for
a collective of a chain (chains.py) costs nothing there. Sizes are without padding.
"""

import dataclasses

from experiments.planning import chains, hlo

_FREE = frozenset("""
    parameter constant tuple get-tuple-element bitcast while conditional call after-all partition-id
    replica-id opt-barrier optimization-barrier add-dependency domain async-update
""".split())
_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATE = "dynamic-update-slice"
_ALLOCATES = 'custom_call_target="AllocateBuffer"'  # names memory, and writes none of it
_LIBRARIES = ("__cublas", "__cudnn")  # their last output is a mostly unused workspace


@dataclasses.dataclass(frozen=True)
class Traffic:
  """Bytes read and written: of the device's main memory, and of buffers kept on the chip."""

  memory: float = 0.0
  on_chip: float = 0.0

  def __add__(self, other: "Traffic") -> "Traffic":
    return Traffic(self.memory + other.memory, self.on_chip + other.on_chip)

  def __mul__(self, times: float) -> "Traffic":
    return Traffic(times * self.memory, times * self.on_chip)


def visit_traffic(module: hlo.Module, visit: hlo.Visit, chip: bool) -> Traffic:
  """Returns the traffic of one visited instruction.

  Args:
    chip: whether memory spaces other than 0 are on the chip, as on a TPU.
  """
  instruction, computation = visit.instruction, visit.computation
  if instruction.opcode in _FREE or _ALLOCATES in instruction.attributes:
    return Traffic()
  moved = list(_reads(module, instruction, computation)) + list(_writes(module, instruction,
                                                                        computation))
  on_chip = sum(size for size, space in moved if chip and space)
  return Traffic(sum(size for size, _ in moved) - on_chip, on_chip) * visit.times


def _reads(module, instruction, computation):
  """Yields (bytes, memory space) of each operand that is read."""
  if instruction.opcode.endswith("-done"):
    return  # the operand is what its start has read already
  for position, name in enumerate(instruction.operands):
    operand = computation.by_name.get(name)
    if operand is None or len(operand.buffers) != 1:
      continue
    size = _bytes_read(module, instruction, position, operand.size)
    yield size, operand.buffers[0].space


def _bytes_read(module, user: hlo.Instruction, position: int, size: int) -> int:
  """Returns bytes that an instruction reads of the operand at `position`, which has `size` bytes.
  """
  if user.opcode == "slice-start":  # of its output (operand, part, counter) only the part is read
    return min(size, sorted(buffer.size for buffer in user.buffers)[-2])
  if user.opcode in _SLICES:
    return min(size, user.size) if position == 0 else size
  if user.opcode == _UPDATE and position == 0:
    return 0
  if user.opcode != "fusion":
    return size
  inner = module.computations[user.called[0]]
  return min(size, _bytes_read_inside(module, inner, inner.parameters[position].name, size))


def _bytes_read_inside(module, computation: hlo.Computation, name: str, size: int) -> int:
  """Returns bytes that a fused computation reads of a value which comes from outside."""
  if computation.by_name[name] is computation.root:
    return size
  read_bytes = 0
  for user, position in computation.users[name]:
    if chains.reads_nothing(user, computation):
      continue
    if user.opcode == "bitcast" or _only_bitcasts(module, user):
      read_bytes += _bytes_read_inside(module, computation, user.name, size)
    else:
      read_bytes += _bytes_read(module, user, position, size)
  return read_bytes


def _only_bitcasts(module, user: hlo.Instruction) -> bool:
  """Returns whether an instruction is a fusion that returns its operand, as TPU compilers nest
  them.

  The bytes read of the operand are then the bytes that its users read.
  """
  if user.opcode != "fusion" or len(user.operands) != 1:
    return False
  inner = module.computations[user.called[0]]
  instruction = inner.root
  while instruction.opcode == "bitcast":
    instruction = inner.by_name[instruction.operands[0]]
  return instruction.opcode == "parameter"


def _writes(module, instruction, computation):
  """Yields (bytes, memory space) of each array that is written."""
  if instruction.opcode.endswith("-start"):
    return  # its end writes
  if instruction.opcode == "fusion":
    inner = module.computations[instruction.called[0]]
    sizes = _bytes_written(module, inner, inner.root)
  else:
    sizes = _bytes_written(module, computation, instruction)
  if instruction.opcode == "custom-call" and any(x in instruction.attributes for x in _LIBRARIES):
    sizes = sizes[:max(1, len(sizes) - 1)]
  for buffer, size in zip(instruction.buffers, sizes, strict=False):
    yield min(size, buffer.size), buffer.space


def _bytes_written(module, computation: hlo.Computation, root: hlo.Instruction) -> list[int]:
  """Returns bytes that an instruction writes, for each array of its output."""
  if root.opcode == "tuple":
    return [size for name in root.operands
            for size in _bytes_written(module, computation, computation.by_name[name])]
  if root.opcode == "fusion":
    inner = module.computations[root.called[0]]
    return _bytes_written(module, inner, inner.root)
  if root.opcode == "bitcast":
    return _bytes_written(module, computation, computation.by_name[root.operands[0]])
  if chains.writes_nothing(root, computation):
    return [0] * len(root.buffers)
  if root.opcode == _UPDATE:
    return [computation.by_name[root.operands[1]].size]
  return [buffer.size for buffer in root.buffers]
