"""Times workload W: generation, scoring, train step and the whole iteration.

With `--peers` other libraries run beside ours.

  python experiments/bench/iteration.py
  python experiments/bench/iteration.py --peers --tunix-python PATH --trl-python PATH

README.md beside this file says what each row means.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import jax
import numpy as np

import measure
import peers
import workload

SIZES = ("prompts", "group", "prompt", "new", "window", "devices")
LABELS = {
    "scoring": "scoring, not in iteration",
    "iteration": "whole iteration",
    "iteration_generation": "  until rollout on host",
    "ragged_generation": "generation, ragged*",
    "ragged_iteration": "whole iteration, ragged*",
}
MODEL_SIZES = ("vocab_size", "width", "num_layers", "num_heads", "num_kv_heads", "head_dim",
               "mlp_width")


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--reps", type=int, default=5,
                      help="measured repetitions of each part (default 5)")
  parser.add_argument("--micro", type=int,
                      help="micro-batches of the train step (default: the fastest of a trial)")
  parser.add_argument("--parts", default=",".join(workload.PARTS),
                      help="names of the parts to time, separated by commas (default: all)")
  parser.add_argument("--json", type=Path, help="file of all numbers")
  parser.add_argument("--scan-layers", action="store_true",
                      help="stack the blocks and scan over them")
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"),
                      help="compute dtype")
  shape = workload.Shape()
  for name in SIZES + MODEL_SIZES:
    default = getattr(shape if name in SIZES else shape.model, name)
    parser.add_argument("--" + name.replace("_", "-"), type=int, default=default,
                        help=f"default {default}")
  peers.add_arguments(parser)
  args = parser.parse_args()
  unknown = set(args.parts.split(",")) - set(workload.PARTS)
  if unknown:
    parser.error(f"--parts {sorted(unknown)}: allowed are {', '.join(workload.PARTS)}")
  if args.peers and any(getattr(args, name) != getattr(shape.model, name) for name in MODEL_SIZES):
    parser.error("--peers: their scripts fix the model's sizes; leave ours at the defaults")
  return args


def shape_of(args: argparse.Namespace) -> workload.Shape:
  base = workload.Shape()
  model = dataclasses.replace(base.model, scan_layers=args.scan_layers, compute_dtype=args.dtype,
                              **{name: getattr(args, name) for name in MODEL_SIZES})
  return dataclasses.replace(base, model=model, **{name: getattr(args, name) for name in SIZES})


def run(args: argparse.Namespace) -> dict:
  """Returns all numbers of one benchmark."""
  shape = shape_of(args)
  programs = workload.build(shape, args.micro or 1)
  state, trials = workload.start(programs), {}
  if args.micro is None:
    programs, state, trials = measure.fastest_micro(programs, state)
  side, peak = measure.peak_flops(args.dtype)
  counts = measure.counts(programs, state.params)  # before the train step donates the state
  return {
      "environment": measure.environment(),
      "shape": dataclasses.asdict(shape),
      "reps": args.reps,
      "micro": programs.micro,
      "micro_trials": trials,
      "peak_side": side,
      "peak_flops": peak,
      "counts": counts,
      "seconds": measure.measure(programs, state, tuple(args.parts.split(",")), args.reps),
      "flops": measure.model_flops(shape),
      "tokens": measure.tokens(shape),
      "ragged_new": workload.ragged_lengths(shape).tolist(),
  }


def report(result: dict) -> str:
  """Returns the numbers as text: medians, smallest and largest."""
  env, shape = result["environment"], result["shape"]
  trials = ", ".join(f"{n}: {s:.2f} s" for n, s in result["micro_trials"].items())
  tried = f" (train step, once each: {trials})" if trials else ""
  lines = [
      f"jax {env['jax']} on {env['device']} ({env['backend']}), {env['cpus_usable']} of "
      f"{env['cpus']} CPUs",
      f"peak {shape['model']['compute_dtype']} GEMM {result['peak_side']}^3: "
      f"{result['peak_flops'] / 1e9:.0f} GFLOP/s",
      f"micro-batches: {result['micro']}{tried}",
      "",
      f"{'part':<28}{'median':>9}{'min':>9}{'max':>9}{'tok/s':>9}{'GFLOP':>9}{'of peak':>9}",
  ]
  for part, values in result["seconds"].items():
    label = LABELS.get(part, part.replace("_", " "))
    key = "generation" if part == "iteration_generation" else part
    median, flops = np.median(values), result["flops"][key]
    lines.append(f"{label:<28}{median:>8.3f}s{min(values):>8.3f}s{max(values):>8.3f}s"
                 f"{result['tokens'][key] / median:>9.0f}{flops / 1e9:>9.1f}"
                 f"{flops / median / result['peak_flops']:>9.1%}")
  lines.append("* planted lengths, mean/max 0.4; useful tokens")
  return "\n".join(lines + [_counts(*item) for item in result["counts"].items()])


def _counts(name: str, counts: dict) -> str:
  return (f"{name + ' lengths':<16} wasted slot-steps {counts['wasted_slot_steps']:.1%}, "
          f"cache bytes read over needed {counts['read_over_needed']:.2f}, "
          f"padded tokens of the train step {counts['padded_tokens']:.1%}")


def main() -> None:
  args = arguments()
  if args.devices > 1:  # a core each; other backends have their own number of devices
    jax.config.update("jax_num_cpu_devices", args.devices)
  if args.peers:
    result = peers.compare(args, Path(__file__))
    text = peers.report(result)
  else:
    result = run(args)
    text = report(result)
  print(text)
  if args.json:
    args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
  main()
