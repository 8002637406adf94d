"""The cost of one program on one device: compiles it for a target and counts.

Memory, by `memory_analysis()`: a TPU program needs `peak_memory_in_bytes`, arguments included. By
this figure the compiler refuses: for a v5e, which has 15.75 GiB, it compiles a program with a peak
of 15.5 GiB and `temp_size_in_bytes` of 17 GiB, the sum of temporaries of loops one after another
that share memory. A GPU program needs arguments + outputs + temporaries, which are one buffer.
"""

import collections
import dataclasses
import functools
import re
import time
from collections.abc import Callable
from typing import Any

import jax

from experiments.planning import abstract, collectives, flops, hlo, in_turn, products, traffic
from experiments.planning.collectives import Moved
from experiments.planning.in_turn import InTurn
from experiments.planning.targets import TPU, Chip, Target
from experiments.planning.traffic import Traffic

_NEEDED = re.compile(r"\(?([\d.]+)([KMGT])i?B?\)?[^.]*? exceeds available[^(]*\(([\d.]+)([KMGT])")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Program:
  """A program of an iteration.

  Attributes:
    name: as `--programs` calls it.
    trace: traces it with abstract arguments.
    columns: its arguments by what they are: parameters, optimizer, cache, batch.
    devices: number of devices that run it together.
    runs: in an iteration, at most.
    trips: of its loops whose trips depend on data, at most, in the program's order.
    model_flops: operations of one run that the method needs, on all devices.
    held: bytes of one device that the run holds meanwhile, in addition to the arguments.
    cache_inside: bytes of the temporaries that are the cache.
    head: (width, vocabulary) of the model.
    needs: bytes of one device that a token step cannot but read: weights, and the cache of the
      tokens in flight; 0 where no step is.
    live: share of a packed row's blocks of attention that kernels do not skip (kernels.py).
  """

  name: str
  trace: Callable[[], jax.stages.Traced]
  columns: dict[str, Any]
  devices: int
  runs: float
  trips: tuple[int, ...]
  model_flops: float
  held: int
  cache_inside: int
  head: tuple[int, int]
  needs: float = 0.0
  live: float = 1.0


@dataclasses.dataclass(frozen=True)
class Work:
  """Work of one device: operations by kind, collectives by kind, memory traffic (bytes), and the
  seconds of its instructions one after the other.
  """

  flops: dict[str, float]
  collectives: dict[str, Moved]
  traffic: Traffic
  in_turn: InTurn


@dataclasses.dataclass(frozen=True)
class Roofline:
  """Seconds of one run, each resource at its peak.

  Attributes:
    compute, memory, interconnect: seconds.
    network: between slices.
    in_turn: of the instructions one after the other.
    mfu: model operations over what the peak would do in `seconds`.
  """

  compute: float
  memory: float
  interconnect: float
  network: float
  in_turn: InTurn
  mfu: float

  @property
  def binds(self) -> str:
    """Returns the resource that takes longest; among the device's own, the one with most seconds in
    turn.
    """
    links = max(self.interconnect, self.network)
    if links == self.seconds:
      return "network" if self.network > self.interconnect else "interconnect"
    limits = self.in_turn if self.in_turn.seconds == self.seconds else self
    return "compute" if limits.compute >= limits.memory else "memory"

  @property
  def seconds(self) -> float:
    """Returns the longest of the resources' seconds and the seconds in turn."""
    return max(self.compute, self.memory, self.interconnect, self.network, self.in_turn.seconds)


@dataclasses.dataclass(frozen=True)
class Analysis:
  """A program on one device of a target; sizes in bytes.

  Attributes:
    program: what was compiled.
    arguments: by column.
    outputs: outputs that reuse no argument.
    needed: by the program, arguments included; None if the compiler refused it without a number.
    temp_size: the compiler's sum of temporaries, some of which share memory; None if refused.
    refused: the compiler's sentence if the program does not fit, else ''.
    compile_seconds: lowering included.
    run: one run; None if refused.
    per_trip: one trip of each loop whose trips depend on data.
    unknown: loops counted once because nothing says how often they run.
    roofline: of one run; None if refused.
  """

  program: Program
  arguments: dict[str, int]
  outputs: int
  needed: int | None
  temp_size: int | None
  refused: str
  compile_seconds: float
  run: Work | None
  per_trip: tuple[Work, ...]
  unknown: tuple[str, ...]
  roofline: Roofline | None

  @property
  def temporaries(self) -> int | None:
    """Needed bytes that are neither arguments nor outputs; padding of arguments is among them."""
    if self.needed is None:
      return None
    return max(0, self.needed - sum(self.arguments.values()) - self.outputs)

  @property
  def total(self) -> int | None:
    """Returns needed bytes plus what else the run holds; None if unknown."""
    return None if self.needed is None else self.needed + self.program.held


def tracing(program: Any, *arguments, **static) -> Callable[[], jax.stages.Traced]:
  """Returns a function that traces a jitted program, or another one with `trace`."""
  return functools.partial(program.trace, *arguments, **static)


def analyse(program: Program, target: Target) -> Analysis:
  """Compiles a program for the target's platform and counts it."""
  arguments = {name: abstract.bytes_of(tree) for name, tree in program.columns.items()}
  begin = time.perf_counter()
  traced = program.trace()
  try:
    compiled = traced.lower(lowering_platforms=(target.chip.platform,)).compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    return _out_of_memory(program, arguments, str(error), time.perf_counter() - begin)
  seconds = time.perf_counter() - begin
  memory = compiled.memory_analysis()
  outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
  required_bytes = memory.peak_memory_in_bytes
  if target.chip.platform != TPU:
    required_bytes = memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes
  operations = flops.count(traced.jaxpr, program.head, program.live)
  once, loops, unknown = _work(program, compiled.as_text(), operations, target)
  run = _total_work(once, loops, program.trips)
  return Analysis(program, arguments, outputs, required_bytes, memory.temp_size_in_bytes, "",
                  seconds, run, tuple(loops), unknown, roofline(program, run, target.chip))


def _out_of_memory(program: Program, arguments, message: str, seconds: float) -> Analysis:
  line = next(line for line in message.splitlines() if "RESOURCE_EXHAUSTED" in line)
  match = _NEEDED.search(line)
  required_bytes = int(float(match[1]) * _UNITS[match[2]]) if match else None
  reason = line.split("RESOURCE_EXHAUSTED: ")[-1]
  return Analysis(program, arguments, 0, required_bytes, None, reason, seconds, None, (), (), None)


def _work(program: Program, text: str, operations: flops.Flops,
          target: Target) -> tuple[Work, list[Work], tuple[str, ...]]:
  """Returns (outside loops of unknown trips, one trip of each of them, loops counted once)."""
  module = hlo.parse(text)
  visits, loops, nested = module.visits()
  places = [_Place() for _ in range(loops + 1)]
  for visit in visits:
    places[0 if visit.loop is None else visit.loop + 1].add(module, visit, program, target)
  # The text's loops are the program's as long as there are as many; else all its FLOPs are outside.
  per_loop = operations.loops if len(operations.loops) == loops else ({},) * loops
  outside = operations.once if len(operations.loops) == loops else operations.total(program.trips)
  works = [place.work(by_kind, program.devices, target.chip)
           for place, by_kind in zip(places, (outside, *per_loop), strict=True)]
  without = [f"loop {k}" for k in range(len(program.trips), loops)]
  return works[0], works[1:], (*without, *nested)


class _Place:
  """Sums over the visits of a loop, or over the visits outside."""

  def __init__(self) -> None:
    self.moved: collections.defaultdict[str, Moved] = collections.defaultdict(Moved)
    self.passed, self.kernel_traffic, self.in_turn = Traffic(), Traffic(), InTurn()

  def add(self, module: hlo.Module, visit: hlo.Visit, program: Program, target: Target) -> None:
    collectives.add(self.moved,
                    collectives.visit_collectives(module, visit, program.devices, target.slices))
    passed = traffic.visit_traffic(module, visit, target.chip.platform == TPU)
    self.passed += passed
    if products.is_kernel(visit.instruction):
      self.kernel_traffic += passed
    self.in_turn += in_turn.visit_seconds(module, visit, passed, target.chip)

  def work(self, by_kind: dict[str, float], devices: int, chip: Chip) -> Work:
    per_device = {kind: operations / devices for kind, operations in by_kind.items()}
    again = Traffic(per_device.pop(flops.READ_AGAIN, 0.0))
    kernels = in_turn.kernel_seconds(per_device.get(flops.KERNEL, 0.0),
                                     self.kernel_traffic + again, chip)
    return Work(per_device, dict(self.moved), self.passed + again, self.in_turn + kernels)


def _total_work(once: Work, loops: list[Work], trips: tuple[int, ...]) -> Work:
  """Returns the work of a full run."""
  operations = collections.defaultdict(float, once.flops)
  moved = collections.defaultdict(Moved, once.collectives)
  passed, turns = once.traffic, once.in_turn
  for loop, times in zip(loops, [*trips, *[1] * len(loops)], strict=False):
    for kind, value in loop.flops.items():
      operations[kind] += times * value
    for kind, sums in loop.collectives.items():
      moved[kind] += sums * times
    passed += loop.traffic * times
    turns += loop.in_turn * times
  return Work(dict(operations), dict(moved), passed, turns)


def roofline(program: Program, run: Work, chip: Chip) -> Roofline:
  """Returns seconds of a run at the chip's peaks."""
  compute = flops.products(run.flops) / chip.flops
  memory = run.traffic.memory / chip.bandwidth
  moved = collectives.total(run.collectives)
  interconnect, network = moved.wire / chip.interconnect, moved.across / chip.network
  seconds = Roofline(compute, memory, interconnect, network, run.in_turn, 0.0)
  peak = program.devices * chip.flops * seconds.seconds
  return dataclasses.replace(seconds, mfu=program.model_flops / peak if peak else 0.0)
