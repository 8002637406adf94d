r"""Times the generation of workload W by engine variants, with fixed and with ragged lengths.

  python experiments/bench/decode.py
  python experiments/bench/decode.py --variants generate,compact2,both --slots 32 --json out.json
  python experiments/bench/decode.py --prompts 4 --prompt 512 --new 512 \
    --variants compact2,compact2_shared --peak

Ragged lengths are planted: row r ends after `max_new[r]` tokens, a seeded list with mean/max 0.4.
`generate` cannot be given lengths, so its ragged line counts the useful tokens over its
fixed-length time. Variants take turns; a line's speed is the first line's seconds of the same round
over its own. The prefill of each prompt once is compared with the prefill of each row.
"""

import argparse
import dataclasses
import functools
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

# name: (refill, batch sizes per halving, shared prompts). With refill `--slots` rows are in flight,
# else all rows.
VARIANTS = {
    "generate": None,
    "plain": (False, 0, False),
    "plain_shared": (False, 0, True),
    "refill": (True, 0, False),
    "compact": (False, 1, False),
    "compact2": (False, 2, False),
    "compact2_shared": (False, 2, True),
    "both": (True, 2, False),
    "both_shared": (True, 2, True),
}
SIZES = ("prompts", "group", "prompt", "new", "window")


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--reps", type=int, default=5, help="measured rounds (default 5)")
  parser.add_argument("--variants", default=",".join(VARIANTS), help="default: all")
  parser.add_argument("--slots", type=int, default=32,
                      help="rows in flight with refill (default 32)")
  parser.add_argument("--chunk", type=int, default=32, help="decode steps per call (default 32)")
  parser.add_argument("--quota", type=int, default=0,
                      help="finished rows that end a chunk (default: slots / 16)")
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"),
                      help="compute dtype")
  parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)  # started by `--peak`
  parser.add_argument(
      "--peak", action="store_true",
      help="also run each variant, ragged, in a process of its own for its largest resident memory")
  parser.add_argument("--json", type=Path, help="file of all numbers")
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
  """Returns (variant, lengths) -> f(round) -> (rollout, Stats, or None for `generate`)."""
  limits = {"fixed": np.full(shape.rows, shape.new), "ragged": workload.ragged_lengths(shape)}

  def with_engine(cfg, limit, index):
    return engine.run(params, workload.prompts(programs, index), jax.random.key(index),
                      Sampling.of(1.0), model=programs.model, cfg=cfg, mesh=programs.mesh,
                      max_new=limit)

  def with_generate(index):
    return programs.single(params, workload.prompts(programs, index), jax.random.key(index),
                           Sampling.of(1.0)), None

  out = {}
  for variant in args.variants.split(","):
    if variant == "generate":
      out[variant, "fixed"] = with_generate
      continue
    for lengths, limit in limits.items():
      cfg = config(args, shape, variant)
      out[variant, lengths] = functools.partial(with_engine, cfg, limit)
  return out


def prefill(programs: workload.Programs, params, shape: workload.Shape,
            reps: int) -> dict[str, list[float]]:
  """Times the prefill of each prompt once (`groups`) and of every row (`rows`), in turn."""
  built = decoding.build(programs.model, 1, (), False, None)
  params, seconds = built.decode_params(params), {"groups": [], "rows": []}
  for index in range(reps + 1):
    for name, count in (("groups", shape.prompts), ("rows", shape.rows)):
      ids = np.random.default_rng(index).integers(workload.FIRST_ID, shape.model.vocab_size,
                                                  (count, shape.prompt))
      given = jax.device_put((ids.astype(np.int32), np.full(count, shape.prompt, np.int32)))
      taken, _ = measure.seconds(built.prefill, params, *given)
      seconds[name] += [taken] if index else []
  return seconds


def peaks(args: argparse.Namespace) -> dict[str, float]:
  """Returns the largest resident memory in bytes of a process per variant, for ragged lengths."""
  names = ("slots", "chunk", "dtype", *SIZES)
  options = [text for name in names for text in (f"--{name}", str(getattr(args, name)))]
  out = {}
  for variant in args.variants.split(","):
    command = [sys.executable, __file__, "--once", "--variants", variant, *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    out[variant] = float(done.stdout.split()[-1])
  return out


def once(args: argparse.Namespace) -> float:
  """Runs the variant's last case; returns the largest resident memory of this process in bytes."""
  shape = shape_of(args)
  programs = workload.build(shape, 1)
  *_, function = cases(args, shape, programs, workload.start(programs).params).values()
  jax.block_until_ready(function(0)[0])
  unit = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run(args: argparse.Namespace) -> dict:
  """Times every case in turn, after a first round that compiles; adds the engine's counts."""
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
  return {
      "environment": measure.environment(),
      "shape": dataclasses.asdict(shape),
      "slots": args.slots,
      "chunk": args.chunk,
      "quota": args.quota,
      "reps": args.reps,
      "useful_tokens": useful,
      "seconds": {" ".join(case): value for case, value in seconds.items()},
      "stats": {" ".join(case): value for case, value in stats.items()},
      "prefill": prefill(programs, params, shape, args.reps),
      "peak_bytes": peaks(args) if args.peak else {},
  }


def report(result: dict) -> str:
  """Returns medians as text; speeds compare with the first line, of fixed lengths."""
  env, first = result["environment"], next(iter(result["seconds"]))
  base = np.array(result["seconds"][first])
  lines = [
      f"jax {env['jax']} on {env['device']} ({env['backend']}), {env['cpus_usable']} of "
      f"{env['cpus']} CPUs, load {env['load_average'][0]:.1f}",
      f"{'':<22}{'median':>9}{'min':>9}{'useful tok/s':>14}{'speed':>8}"
      f"{'waste':>8}{'read/needed':>13}{'cache MB':>10}{'chunks':>8}",
  ]
  for case, values in result["seconds"].items():
    useful, median = result["useful_tokens"][case.split()[1]], np.median(values)
    line = (f"{case:<22}{median:>8.3f}s{min(values):>8.3f}s{useful / median:>14.0f}"
            f"{np.median(base / values):>8.2f}")
    if case in result["stats"]:
      stats = result["stats"][case]
      read = stats["cache_bytes_read"] / stats["cache_bytes_needed"]
      line += (f"{stats['waste']:>8.1%}{read:>13.2f}{stats['cache_bytes_held'] / 1e6:>10.1f}"
               f"{stats['chunks']:>8}")
    lines.append(line)
  if "generate fixed" in result["seconds"]:
    single = result["useful_tokens"]["ragged"] / np.median(result["seconds"]["generate fixed"])
    lines.append(f"generate, ragged: {single:.0f} useful tok/s over its fixed-length time")
  shares = np.divide(*(result["prefill"][name] for name in ("groups", "rows")))
  lines.append(f"prefill of each prompt once over that of each row: {np.median(shares):.3f}")
  lines += [f"{name}: largest resident memory {size / 1e6:.0f} MB"
            for name, size in result["peak_bytes"].items()]
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
