"""An analysis of programs as text and as JSON-able data."""

import dataclasses
import operator

from experiments.planning import advice, collectives, flops
from experiments.planning.analysis import Analysis, Work
from experiments.planning.targets import Target
from jaxrl_llm.config import ConfigError

LEFT_OUT = """\
What the estimate leaves out: overlap of one instruction with the next (but transfers that are
started apart hide), overlap with the interconnect (only what takes longest counts), latency and
launch of programs, the topology of the interconnect (every link is taken to be used), the
efficiency of kernels, operations that are no matrix products, the host, and verification. Rows
count at full length, padding included, and every row is sampled to its last token."""
_COLUMNS = ("parameters", "optimizer", "cache", "batch")


def as_data(analyses: list[Analysis], target: Target) -> dict:
  """Returns everything that the text says, and more, in bytes, operations and seconds."""
  return {
      "target": target.name,
      "devices": len(target.devices),
      "chip": dataclasses.asdict(target.chip),
      "programs": [_program(analysis, target) for analysis in analyses],
  }


def _program(analysis: Analysis, target: Target) -> dict:
  program = analysis.program
  row: dict = {
      "name": program.name,
      "devices": program.devices,
      "runs_per_iteration": program.runs,
      "trips": list(program.trips),
      "compile_seconds": analysis.compile_seconds,
      "refused": analysis.refused,
      "bytes": {
          **analysis.arguments, "outputs": analysis.outputs, "temporaries": analysis.temporaries,
          "needed": analysis.needed, "held": program.held, "total": analysis.total,
          "temp_size": analysis.temp_size, "cache_inside": program.cache_inside,
      },
      "model_flops": program.model_flops,
      "needs_per_token_step": program.needs,
      "unknown_loops": list(analysis.unknown),
      "advice": advice.memory_advice(analysis, target.chip),
  }
  if analysis.run is not None:
    row["run"] = _work(analysis.run)
    row["per_token_step"] = [_work(work) for work in analysis.per_trip]
    roofline = analysis.roofline
    row["seconds"] = {"compute": roofline.compute, "memory": roofline.memory,
                      "interconnect": roofline.interconnect, "network": roofline.network,
                      "in_turn": dataclasses.asdict(roofline.in_turn),
                      "longest": roofline.seconds, "binds": roofline.binds}
    row["mfu"] = roofline.mfu
  return row


def _work(work: Work) -> dict:
  return {
      "flops": work.flops,
      "collectives": {kind: dataclasses.asdict(moved) for kind, moved in
                      sorted(work.collectives.items())},
      "collective_bytes": collectives.total(work.collectives).bytes,
      "memory_bytes": work.traffic.memory,
      "on_chip_bytes": work.traffic.on_chip,
      "seconds_in_turn": work.in_turn.seconds,
  }


def as_text(analyses: list[Analysis], target: Target) -> str:
  """Returns tables of memory, work and seconds, and what does not fit."""
  chip = target.chip
  between = f", network between slices {chip.network / 1e9:g} GB/s" if target.slices > 1 else ""
  head = (f"{target.name}: {len(target.devices)} devices, each {chip.flops / 1e12:g} TFLOP/s, "
          f"{chip.memory / 1e9:g} GB, {chip.bandwidth / 1e9:g} GB/s, interconnect "
          f"{chip.interconnect / 1e9:g} GB/s{between} ({chip.source})")
  parts = [head, "GB of one device", _table(_memory_rows(analyses, target)),
           "one run on one device; TB are 1e12 bytes", _table(_work_rows(analyses)),
           "collectives of one run on one device", _table(_collective_rows(analyses)),
           "seconds at the peaks", _table(_second_rows(analyses)), *_notes(analyses, target),
           LEFT_OUT]
  return "\n\n".join(parts)


def verdict(analyses: list[Analysis], target: Target) -> str:
  """Returns the sentence of a plan that fits: what binds, and seconds of which.

  Raises:
    ConfigError: programs that a device does not hold, with their bytes and the keys to change.
  """
  chip = target.chip
  large = [a for a in analyses if not advice.fits(a, chip)]
  if large:
    sizes = ", ".join(f"{a.program.name} {_gb(a.total)}" for a in large)
    raise ConfigError(f"{target.name} does not fit: of {_gb(chip.memory)} GB of a device, "
                      f"{sizes} GB are needed. {advice.memory_advice(large[0], chip)[0]}")
  seconds = [a.program.runs * a.roofline.seconds for a in analyses]
  most = max(analyses, key=operator.attrgetter("total"))
  slowest = analyses[seconds.index(max(seconds))]
  return (f"{target.name} fits: {most.program.name} needs most, {_gb(most.total)} of "
          f"{_gb(chip.memory)} GB; {slowest.roofline.binds} binds {slowest.program.name}, which "
          f"takes {_number(max(seconds))} of {_number(sum(seconds))} s at the peaks.")


def longest(seconds: dict) -> float:
  """Returns the seconds of a program in `as_data`; older plans have none in turn, and took the
  seconds of the resource that binds.
  """
  return seconds["longest"] if "longest" in seconds else seconds[seconds["binds"]]


def summary(plan: dict) -> str:
  """Returns the lines of a recipe's header, from `as_data`."""
  memory = plan["chip"]["memory"]
  count = plan["devices"]
  head = (f"Planned for {plan['target']}, {count} device{'s' if count > 1 else ''} of "
          f"{_gb(memory)} GB (experiments/plan.py; compiled, not run):")
  lines = [head]
  for program in plan["programs"]:
    if program["name"].startswith("hand_over"):
      continue
    total, seconds = program["bytes"]["total"], program.get("seconds")
    line = f"  {program['name']:<10}{_gb(total):>5} GB each"
    if seconds is not None:
      line += (f"; {program['runs_per_iteration']:g} x {_number(longest(seconds))} s, "
               f"{seconds['binds']} binds, MFU {_number(100 * program['mfu'])} %")
    lines.append(line + ("; REFUSED" if program["refused"] or total > memory else ""))
  return "\n".join(lines)


def _memory_rows(analyses, target) -> list[list[str]]:
  rows = [["program", *_COLUMNS, "outputs", "temporaries", "needed", "held", "total", "of",
           "compile s"]]
  for a in analyses:
    sizes = [*(a.arguments[name] for name in _COLUMNS), a.outputs, a.temporaries, a.needed,
             a.program.held, a.total, target.chip.memory]
    rows.append([a.program.name, *map(_gb, sizes), f"{a.compile_seconds:.0f}"])
  return rows


def _work_rows(analyses) -> list[list[str]]:
  rows = [["program", "runs", *(f"{kind} TFLOP" for kind in flops.PRODUCTS), "elementwise", "sort",
           "memory TB", "collectives TB"]]
  for a in analyses:
    works = [] if a.run is None else [(a.program.name, f"{a.program.runs:g}", a.run)]
    works += [(f"  per token step{f' {k}' if len(a.per_trip) > 1 else ''}", "", work)
              for k, work in _ends(a.per_trip)]
    for name, runs, work in works:
      counts = [work.flops.get(kind, 0.0) for kind in
                (*flops.PRODUCTS, flops.ELEMENTWISE, flops.SORT)]
      moved = [work.traffic.memory, collectives.total(work.collectives).bytes]
      rows.append([name, runs, *(_number(x / 1e12) for x in (*counts, *moved))])
  return rows


def _ends(works: tuple[Work, ...]) -> list[tuple[int, Work]]:
  """Returns the first and the last, because windows differ only by their cache."""
  numbered = list(enumerate(works))
  return numbered if len(numbered) < 3 else [numbered[0], numbered[-1]]


def _collective_rows(analyses) -> list[list[str]]:
  rows = [["program", "kind", "count", "output GB", "sent GB", "across slices GB"]]
  for a in analyses:
    by_kind = {} if a.run is None else a.run.collectives
    for kind, moved in sorted(by_kind.items(), key=_largest_first):
      rows.append([a.program.name, kind, f"{moved.count:,.0f}", _number(moved.bytes / 1e9),
                   _number(moved.wire / 1e9), _number(moved.across / 1e9)])
  return rows


def _largest_first(kind_and_move) -> float:
  return -kind_and_move[1].bytes


def _second_rows(analyses) -> list[list[str]]:
  rows = [["program", "runs", "compute", "memory", "interconnect", "network", "in turn",
           "of it memory", "binds", "MFU %"]]
  total_seconds, model_seconds = 0.0, 0.0
  for a in analyses:
    if a.roofline is None:
      continue
    r, runs = a.roofline, a.program.runs
    seconds = map(_number, (r.compute, r.memory, r.interconnect, r.network, r.in_turn.seconds,
                            r.in_turn.memory))
    rows.append([a.program.name, f"{runs:g}", *seconds, r.binds, _number(100 * r.mfu)])
    total_seconds += runs * r.seconds
    model_seconds += runs * r.mfu * r.seconds
  if total_seconds:
    rows.append(["iteration", *[""] * 7, f"{_number(total_seconds)} s",
                 _number(100 * model_seconds / total_seconds)])
  return rows


def _notes(analyses, target) -> list[str]:
  lines = []
  for a in analyses:
    if a.refused:
      lines.append(f"{a.program.name}: the compiler refuses it: {a.refused}")
    lines += [f"{a.program.name}: {text}" for text in advice.memory_advice(a, target.chip)]
    if target.slices > 1 and a.run and not collectives.total(a.run.collectives).across:
      lines.append(f"{a.program.name}: no collective across slices was recognised in the compiled "
                   "text, so what the network costs is unknown, not 0")
    if a.unknown:
      lines.append(f"{a.program.name}: trips unknown, counted once: {', '.join(a.unknown)}")
    if a.program.cache_inside:
      lines.append(f"{a.program.name}: of the temporaries {_gb(a.program.cache_inside)} GB are "
                   "the cache of the longest window")
  return ["\n".join(lines)] if lines else []


def _gb(size: float | None) -> str:
  return "?" if size is None else _number(size / 1e9)


def _number(x: float) -> str:
  if x == 0:
    return "0"
  return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def _table(rows: list[list[str]]) -> str:
  """Returns rows with aligned columns; the first is the header, the first column is on the left."""
  widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
  lines = []
  for row in rows:
    cells = [row[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(row[1:], widths[1:],
                                                                   strict=True))]
    lines.append("  ".join(cells).rstrip())
  return "\n".join(lines)
