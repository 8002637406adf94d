"""Collectives of a compiled program: how many, and how many bytes they move, loops multiplied out.
"""

import collections
import dataclasses
import math
import re

from jaxrl_llm.planning import hlo

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute",
         "collective-broadcast", "ragged-all-to-all")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_AXIS = re.compile(r"'([^']+)'=(\d+)")


@dataclasses.dataclass(frozen=True)
class Moved:
  """Collectives of one kind on one device.

  Attributes:
    count: how many.
    bytes: of their outputs.
    wire: bytes that the device sends, and as many that it receives, in a ring over the group.
  """

  count: float = 0.0
  bytes: float = 0.0
  wire: float = 0.0

  def __add__(self, other: "Moved") -> "Moved":
    return Moved(self.count + other.count, self.bytes + other.bytes, self.wire + other.wire)

  def __mul__(self, times: float) -> "Moved":
    return Moved(times * self.count, times * self.bytes, times * self.wire)


def of_visit(module: hlo.Module, visit: hlo.Visit, devices: int) -> list[tuple[str, Moved]]:
  """Collectives of one visited instruction, as (kind, moved); mostly none.

  An asynchronous pair counts at its end, where the output is. A fusion counts what is inside; one
  that keeps a slice of an all-reduce is a reduce-scatter.
  """
  instruction = visit.instruction
  if instruction.opcode in ("fusion", "async-start"):
    return [(kind, moved * visit.times) for kind, moved in _fused(module, instruction, devices)]
  kind = _kind(instruction)
  if kind is None:
    return []
  start = visit.computation.by_name.get(instruction.operands[0]) if instruction.operands else None
  source = start if instruction.opcode.endswith("-done") and start else instruction
  return [(kind, _moved(kind, instruction.size, group_size(source, devices)) * visit.times)]


def _kind(instruction: hlo.Instruction) -> str | None:
  if instruction.opcode.endswith("-start"):
    return None
  base = instruction.opcode.removesuffix("-done")
  return base if base in KINDS else None


def _fused(module: hlo.Module, fusion: hlo.Instruction, devices: int):
  moves, counted_ids = [], set()
  for instruction, computation in hlo.inner(module, fusion):
    base = instruction.opcode.removesuffix("-start")
    channel = _CHANNEL.search(instruction.attributes)
    identity = channel[1] if channel else instruction.name
    if base not in KINDS or identity in counted_ids:
      continue
    counted_ids.add(identity)
    size, group = instruction.size, group_size(instruction, devices)
    if instruction.opcode.endswith("-start"):
      size = max(buffer.size for buffer in instruction.buffers)
    readers = [user.opcode for user, _ in computation.users[instruction.name]]
    if base == "all-reduce" and readers == ["dynamic-slice"]:
      base, size = "reduce-scatter", computation.users[instruction.name][0][0].size
    moves.append((base, _moved(base, size, group)))
  return moves


def _moved(kind: str, size: int, group: int) -> Moved:
  """A collective with an output of `size` bytes in a group of devices."""
  part = (group - 1) / group
  per_byte = {"all-reduce": 2 * part, "reduce-scatter": group - 1.0, "all-gather": part,
              "all-to-all": part}.get(kind, 1.0)
  return Moved(1.0, size, per_byte * size)


def group_size(instruction: hlo.Instruction, devices: int) -> int:
  """Devices of one group of a collective; all of them where the text does not say."""
  text = instruction.attributes
  if match := _IOTA.search(text):
    return int(match[2])
  if match := _LISTED.search(text):
    return max(1, len([x for x in match[1].split(",") if x])) if match[1] else devices
  if match := _NAMED.search(text):
    sizes = {name: int(size) for name, size in _AXIS.findall(match[1])}
    return max(1, math.prod(sizes.get(name, 1) for name in re.findall(r"'([^']+)'", match[2])))
  return devices


def total(by_kind: dict[str, Moved]) -> Moved:
  """Returns all kinds together."""
  return sum(by_kind.values(), Moved())


def add(into: collections.defaultdict, moves: list[tuple[str, Moved]]) -> None:
  """Adds what `of_visit` found to the sums by kind."""
  for kind, moved in moves:
    into[kind] += moved
