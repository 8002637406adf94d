"""Collectives of a compiled program: how many, and how many bytes they move, loops multiplied out.
"""

import collections
import dataclasses
import math
import re

import numpy as np

from experiments.planning import chains, hlo

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute",
         "collective-broadcast", "ragged-all-to-all")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=(\S+)")
_PAIRS = re.compile(r"source_target_pairs=\{([\d,{}]*)\}")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((\S*)\))? \{([^}]*)\}")
_ORDER = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
# Between slices a TPU's compiler leaves a collective to the runtime: a device sends its part to its
# host, and this attribute names its collective.
_BY_HOST = re.compile(r'_xla_megascale_transfer_type="?(\w+)')


@dataclasses.dataclass(frozen=True)
class Moved:
  """Collectives of one kind on one device.

  Attributes:
    count: how many.
    bytes: of their outputs.
    wire: bytes that the device sends, and as many that it receives, in a ring over the group.
    across: bytes that the device sends between slices.
  """

  count: float = 0.0
  bytes: float = 0.0
  wire: float = 0.0
  across: float = 0.0

  def __add__(self, other: "Moved") -> "Moved":
    return Moved(self.count + other.count, self.bytes + other.bytes, self.wire + other.wire,
                 self.across + other.across)

  def __mul__(self, times: float) -> "Moved":
    return Moved(times * self.count, times * self.bytes, times * self.wire, times * self.across)


def visit_collectives(module: hlo.Module, visit: hlo.Visit, devices: int,
                      slices: int = 1) -> list[tuple[str, Moved]]:
  """Returns collectives of one visited instruction, as (kind, moved); mostly none.

  An asynchronous pair, or chain of fusions, counts at its end, where the output is. Another fusion
  counts what is inside; one that keeps a slice of an all-reduce is a reduce-scatter.

  Args:
    slices: of the devices, which the text numbers one slice after the other.
  """
  instruction = visit.instruction
  if instruction.opcode in ("fusion", "async-start"):
    return [(kind, moved * visit.times)
            for kind, moved in _fused(module, instruction, (devices, slices))]
  if by_host := _BY_HOST.search(instruction.attributes):
    return ([(_host_kind(by_host), _moved_by_host(by_host, instruction, slices) * visit.times)]
            if instruction.opcode == "send" else [])
  kind = _kind(instruction)
  if kind is None:
    return []
  start = visit.computation.by_name.get(instruction.operands[0]) if instruction.operands else None
  source = start if instruction.opcode.endswith("-done") and start else instruction
  return [(kind, _transfer(kind, instruction.size, source, (devices, slices)) * visit.times)]


def _host_kind(match: re.Match) -> str:
  return match[1].lower().replace("_", "-")


def _moved_by_host(match: re.Match, send: hlo.Instruction, slices: int) -> Moved:
  """Returns the traffic between slices of a `send`, whose first buffer is the device's part."""
  size = send.buffers[0].size
  across = {"all-reduce": 2 * (slices - 1) / slices, "reduce-scatter": (slices - 1) / slices,
            "all-to-all": (slices - 1) / slices, "all-gather": slices - 1.0}
  return Moved(1.0, size, 0.0, across.get(_host_kind(match), 1.0) * size)


def _kind(instruction: hlo.Instruction) -> str | None:
  if instruction.opcode.endswith("-start"):
    return None
  base = instruction.opcode.removesuffix("-done")
  return base if base in KINDS else None


def _fused(module: hlo.Module, fusion: hlo.Instruction, of: tuple[int, int]):
  moves, counted_ids = [], set()
  for instruction, computation in hlo.inner(module, fusion):
    base = instruction.opcode.removesuffix("-start")
    channel = _CHANNEL.search(instruction.attributes)
    identity = channel[1] if channel else instruction.name
    if (base not in KINDS or identity in counted_ids
        or chains.is_counted_elsewhere(instruction, computation)):
      continue
    counted_ids.add(identity)
    size = instruction.size
    if instruction.opcode.endswith("-start"):
      size = max(buffer.size for buffer in instruction.buffers)
    readers = [user.opcode for user, _ in computation.users[instruction.name]]
    if base == "all-reduce" and readers == ["dynamic-slice"]:
      base, size = "reduce-scatter", computation.users[instruction.name][0][0].size
    moves.append((base, _transfer(base, size, instruction, of)))
  return moves


def _transfer(kind: str, size: int, instruction: hlo.Instruction, of: tuple[int, int]) -> Moved:
  """Returns a collective with an output of `size` bytes, of `of` = (devices, slices)."""
  devices, slices = of
  members = group(instruction, devices)
  wire = _per_byte(kind, len(members)) * size
  reached = len({device * slices // devices for device in members})
  if kind == "collective-permute":
    pairs = re.findall(r"\d+,\d+", (_PAIRS.search(instruction.attributes) or ["", ""])[1])
    reached = max((len({int(x) * slices // devices for x in pair.split(",")}) for pair in pairs),
                  default=1)
  if reached == 1:
    return Moved(1.0, size, wire)
  # Inside a slice first, so that each of its devices sends its part across.
  share = size * reached / len(members) if kind != "collective-permute" else size
  return Moved(1.0, size, wire, _per_byte(kind, reached) * share)


def _per_byte(kind: str, count: int) -> float:
  """Returns bytes that a device sends for each byte of its output, in a ring of `count`."""
  part = (count - 1) / count
  return {"all-reduce": 2 * part, "reduce-scatter": count - 1.0, "all-gather": part,
          "all-to-all": part}.get(kind, 1.0)


def group(instruction: hlo.Instruction, devices: int) -> list[int]:
  """Returns the first group of a collective; all devices where the text does not say."""
  text = instruction.attributes
  if match := _IOTA.search(text):
    return _numbers(match[3]).reshape(int(match[1]), int(match[2]))[0].tolist()
  if (match := _LISTED.search(text)) and match[1]:
    return [int(number) for number in match[1].split(",") if number]
  if match := _NAMED.search(text):
    names, sides = zip(*((name, int(size)) for name, size in _AXIS.findall(match[1])), strict=True)
    inside = re.findall(r"'([^']+)'", match[3])
    numbers = (_numbers(match[2]) if match[2] else np.arange(math.prod(sides))).reshape(sides)
    return numbers[tuple(slice(None) if name in inside else 0 for name in names)].ravel().tolist()
  return list(range(devices))


def _numbers(text: str) -> np.ndarray:
  """Returns the numbers of an order such as [2,4]T(1,0): counted by rows, and read with axes
  exchanged.
  """
  match = _ORDER.match(text)
  if match is None:
    raise ValueError(f"no order of devices: {text}")
  sides, axes = match.groups()
  numbers = np.arange(math.prod(map(int, sides.split(",")))).reshape(
      [int(side) for side in sides.split(",")])
  return numbers.transpose([int(axis) for axis in axes.split(",")] if axes else None).ravel()


def total(by_kind: dict[str, Moved]) -> Moved:
  """Returns all kinds together."""
  return sum(by_kind.values(), Moved())


def add(into: collections.defaultdict, moves: list[tuple[str, Moved]]) -> None:
  """Adds what `visit_collectives` found to the sums by kind."""
  for kind, moved in moves:
    into[kind] += moved
