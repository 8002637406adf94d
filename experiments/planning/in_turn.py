"""Seconds of a program whose instructions run one after the other.

Each instruction takes the longer of two times: its products at the chip's peak, and its traffic at
the memory's. Traffic therefore overlaps only with the products of the same instruction.
Asynchronous transfers (`copy-start`, `all-gather-start`, the ends of chains.py) overlap with other
instructions and take no turn.
"""

import dataclasses

from experiments.planning import chains, hlo, products
from experiments.planning.targets import Chip
from experiments.planning.traffic import Traffic


@dataclasses.dataclass(frozen=True)
class InTurn:
  """Seconds of the instructions whose products take longer, and of the instructions whose traffic
  does.
  """

  compute: float = 0.0
  memory: float = 0.0

  @property
  def seconds(self) -> float:
    return self.compute + self.memory

  def __add__(self, other: "InTurn") -> "InTurn":
    return InTurn(self.compute + other.compute, self.memory + other.memory)

  def __mul__(self, times: float) -> "InTurn":
    return InTurn(times * self.compute, times * self.memory)


def visit_seconds(module: hlo.Module, visit: hlo.Visit, traffic: Traffic, chip: Chip) -> InTurn:
  """Returns seconds of one visited instruction; none of a kernel, see `kernel_seconds`.

  Args:
    traffic: traffic of the visit.
  """
  if _takes_no_turn(visit.instruction):
    return InTurn()
  operations = products.count_operations(module, visit.instruction, visit.computation)
  if not operations and chains.is_end(module, visit.instruction):
    return InTurn()
  return _larger(visit.times * operations, traffic.memory, chip)


def kernel_seconds(operations: float, traffic: Traffic, chip: Chip) -> InTurn:
  """Returns seconds of a program's kernels, as one instruction.

  Args:
    operations: of one device.
    traffic: of the visits of kernels, and what they read again.
  """
  return _larger(operations, traffic.memory, chip)


def _takes_no_turn(instruction: hlo.Instruction) -> bool:
  return products.is_kernel(instruction) or instruction.opcode.endswith(("-start", "-done"))


def _larger(operations: float, size: float, chip: Chip) -> InTurn:
  compute, memory = operations / chip.flops, size / chip.bandwidth
  return InTurn(compute, 0.0) if compute > memory else InTurn(0.0, memory)
