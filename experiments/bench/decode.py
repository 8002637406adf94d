"""Time the generation of workload W by engine variants, with fixed and with ragged lengths.

  python experiments/bench/decode.py
  python experiments/bench/decode.py --variants generate,compact2,both --slots 32 --json out.json
  python experiments/bench/decode.py --prompts 4 --prompt 512 --new 512 --variants
  compact2,compact2_shared --peak

Ragged lengths are planted: row r ends after `max_new[r]` tokens, a seeded list with mean/max 0.4.
`generate` cannot be told lengths, so its ragged line is its fixed-length time with the useful
tokens counted. Variants take turns, and the speed is the first line's seconds of the same round
over a line's own. Prefill of each prompt once is compared with that of each row.
"""

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

from jaxrl_llm.rollouts import decoding, engine
from jaxrl_llm.types import Sampling

import measure
import workload

# name: (refill, batch sizes per halving, shared prompts); with refill, `--slots` rows are in
# flight, else all.
VARIANTS = {
    "generate": None,
    "plain": (False, 0, False),
    "plain_shared": (False, 0, True),
    "refill": (True, 0, False),
    "compact": (False, 1, False),
    "compact2": (False, 2, False),
    "compact2_shared": (False, 2, True),
    "both": (True, 2, False),
    "both_shared": (True, 2, True)
}
SIZES = ("prompts", "group", "prompt", "new", "window")


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--reps", type=int, default=5, help="measured rounds (default 5)")
  parser.add_argument("--variants", default=",".join(VARIANTS), help="default: all")
  parser.add_argument("--slots", type=int, default=32,
                      help="rows in flight where refill is on (default 32)")
  parser.add_argument("--chunk", type=int, default=32, help="decode steps per call (default 32)")
  parser.add_argument("--quota", type=int, default=0,
                      help="ended rows that end a chunk (default: slots / 16)")
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"),
                      help="compute dtype")
  parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)  # what `--peak` starts
  parser.add_argument(
      "--peak", action="store_true",
      help="ragged lengths once more, each variant in its own process: "
      "its largest resident memory")
  parser.add_argument("--json", type=Path, help="file that all numbers are written to")
  for name in SIZES:
    default = getattr(workload.Shape(), name)
    parser.add_argument("--" + name, type=int, default=default, help=f"default {default}")
  args = parser.parse_args()
  unknown = set(args.variants.split(",")) - set(VARIANTS)
  if unknown:
    parser.error(f"--variants {sorted(unknown)}: allowed are {', '.join(VARIANTS)}")
  return args


def shape_of(args: argparse.Namespace) -> workload.Shape:
  base = workload.Shape()
  return dataclasses.replace(base, model=dataclasses.replace(base.model, compute_dtype=args.dtype),
                             **{name: getattr(args, name) for name in SIZES})


def config(args: argparse.Namespace, shape: workload.Shape, variant: str) -> engine.EngineConfig:
  refill, compact, shared = VARIANTS[variant]
  return engine.EngineConfig(group_size=shape.group, max_new_tokens=shape.new,
                             slots=args.slots if refill else shape.rows, chunk=args.chunk,
                             window=shape.window, stop_ids=(shape.model.vocab_size,), refill=refill,
                             compact=compact, quota=args.quota, shared_prefix=shared)


def cases(args: argparse.Namespace, shape: workload.Shape, programs: workload.Programs,
          params) -> dict:
  """(variant, lengths) -> function of the round: one generation, and its Stats (None for
  `generate`).
  """
  limits = {"fixed": np.full(shape.rows, shape.new), "ragged": workload.ragged_lengths(shape)}

  def drawn(cfg, limit, index):
    return engine.run(params, workload.prompts(programs, index), jax.random.key(index),
                      Sampling.of(1.0), model=programs.model, cfg=cfg, mesh=programs.mesh,
                      max_new=limit)

  def single(index):
    return programs.single(params, workload.prompts(programs, index), jax.random.key(index),
                           Sampling.of(1.0)), None

  out = {}
  for variant in args.variants.split(","):
    if variant == "generate":
      out[variant, "fixed"] = single
      continue
    for lengths, limit in limits.items():
      cfg = config(args, shape, variant)
      out[variant, lengths] = lambda index, cfg=cfg, limit=limit: drawn(cfg, limit, index)
  return out


def prefill(programs: workload.Programs, params, shape: workload.Shape,
            reps: int) -> dict[str, list[float]]:
  """Seconds of the prompts' prefill, each once (`groups`) and for every row (`rows`), in turn."""
  built = decoding.build(programs.model, 1, (), False, None)
  params, seconds = built.decode_params(params), {"groups": [], "rows": []}
  for index in range(reps + 1):
    for name, count in (("groups", shape.prompts), ("rows", shape.rows)):
      ids = np.random.default_rng(index).integers(workload.FIRST_ID, shape.model.vocab_size,
                                                  (count, shape.prompt))
      given = jax.device_put((ids.astype(np.int32), np.full(count, shape.prompt, np.int32)))
      taken, _ = measure.seconds(lambda given=given: built.prefill(params, *given))
      seconds[name] += [taken] if index else []
  return seconds


def peaks(args: argparse.Namespace) -> dict[str, float]:
  """Largest resident memory, bytes, of a process that draws each variant's ragged lengths once."""
  out = {}
  for variant in args.variants.split(","):
    sizes = [text for name in SIZES for text in ("--" + name, str(getattr(args, name)))]
    command = [
        sys.executable, __file__, "--once", "--variants", variant, "--slots",
        str(args.slots), "--chunk",
        str(args.chunk), "--dtype", args.dtype, *sizes
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    out[variant] = float(done.stdout.split()[-1])
  return out


def once(args: argparse.Namespace) -> float:
  """Draw the one variant's last case; this process's largest resident memory, bytes."""
  shape = shape_of(args)
  programs = workload.build(shape, 1)
  *_, function = cases(args, shape, programs, workload.start(programs).params).values()
  jax.block_until_ready(function(0)[0])
  unit = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run(args: argparse.Namespace) -> dict:
  """Seconds of every case and round, after a first round that compiles, and the engine's counts."""
  shape = shape_of(args)
  programs = workload.build(shape, 1)
  params = workload.start(programs).params
  table = cases(args, shape, programs, params)
  seconds, stats = {case: [] for case in table}, {}
  for index in range(args.reps + 1):
    for case, function in table.items():
      begin = time.perf_counter()
      rollout, counts = function(index)
      jax.block_until_ready(rollout)
      taken = time.perf_counter() - begin
      if index:
        seconds[case].append(taken)
      if counts is not None:
        stats[case] = dataclasses.asdict(counts) | {"waste": counts.waste}
  useful = {"fixed": shape.rows * shape.new, "ragged": int(workload.ragged_lengths(shape).sum())}
  flat = lambda table: {" ".join(case): value for case, value in table.items()}
  return {
      "environment": measure.environment(),
      "shape": dataclasses.asdict(shape),
      "slots": args.slots,
      "chunk": args.chunk,
      "quota": args.quota,
      "reps": args.reps,
      "useful_tokens": useful,
      "seconds": flat(seconds),
      "stats": flat(stats),
      "prefill": prefill(programs, params, shape, args.reps),
      "peak_bytes": peaks(args) if args.peak else {}
  }


def report(result: dict) -> str:
  """Medians as text; a ragged speed is over the fixed-length time of `generate`."""
  env, first = result["environment"], next(iter(result["seconds"]))
  base = np.array(result["seconds"][first])
  lines = [
      f"jax {env['jax']} on {env['device']} ({env['backend']}), {env['cpus_usable']} of "
      f"{env['cpus']} CPUs, load "
      f"{env['load_average'][0]:.1f}",
      f"{'':<22}{'median':>9}{'min':>9}{'useful tok/s':>14}{'speed':>8}"
      f"{'waste':>8}{'read/needed':>13}{'cache MB':>10}{'chunks':>8}"
  ]
  for case, values in result["seconds"].items():
    useful = result["useful_tokens"][case.split()[1]]
    line = (
        f"{case:<22}{np.median(values):>8.3f}s{min(values):>8.3f}s{useful / np.median(values):>14.0f}"
        f"{np.median(base / values):>8.2f}")
    if case in result["stats"]:
      stats = result["stats"][case]
      line += (
          f"{stats['waste']:>8.1%}{stats['cache_bytes_read'] / stats['cache_bytes_needed']:>13.2f}"
          f"{stats['cache_bytes_held'] / 1e6:>10.1f}{stats['chunks']:>8}")
    lines.append(line)
  if "generate fixed" in result["seconds"]:
    single = result["useful_tokens"]["ragged"] / np.median(result["seconds"]["generate fixed"])
    lines.append(f"generate, ragged: {single:.0f} useful tok/s over its fixed-length time")
  shares = np.divide(*(result["prefill"][name] for name in ("groups", "rows")))
  lines.append(f"prefill of each prompt once over that of each row: {np.median(shares):.3f}")
  lines += [
      f"{name}: largest resident memory {size / 1e6:.0f} MB"
      for name, size in result["peak_bytes"].items()
  ]
  return "\n".join(lines)


def main() -> None:
  args = arguments()
  if args.once:
    print(once(args))
    return
  result = run(args)
  print(report(result))
  if args.json:
    args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
  main()
