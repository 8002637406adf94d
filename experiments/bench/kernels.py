"""Times the prefix kernels against `jnp.cumsum` and `jax.lax.cummin`; writes every repetition.

  python experiments/bench/kernels.py
  python experiments/bench/kernels.py --repeats 5 --json out.json

Only the forward pass is timed, jitted. One call each compiles; then kernel and reference take turns
in one process, so that a slow moment of the machine meets both. Absolute times drift, their ratio
drifts less. The reference skips masked tokens and gives the same result; for the exclusive minimum
it also shifts and fills.

Targets: cumulative_log_ratio takes at most 1.5 times as long as jnp.cumsum, prefix_min at most as
long as lax.cummin.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.ops import prefix

import measure

SHAPES = ((64, 4096), (512, 16384))
RESULT = Path(__file__).parent / "results" / "kernels.json"


def cumsum(log_ratio, mask):
  return jnp.cumsum(jnp.where(mask, log_ratio, 0), -1)


def cummin(log_ratio, mask):
  inclusive = jax.lax.cummin(jnp.where(mask, log_ratio, jnp.inf), axis=1)
  shifted = jnp.concatenate([jnp.full_like(inclusive[:, :1], jnp.inf), inclusive[:, :-1]], 1)
  return jnp.where(jnp.isposinf(shifted), 0.0, shifted)


# name: (kernel, reference, largest ratio of their medians)
PAIRS = {
    "cumulative_log_ratio": (prefix.cumulative_log_ratio, cumsum, 1.5),
    "prefix_min": (prefix.prefix_min, cummin, 1.0),
}


def compare(name: str, shape: tuple[int, int], repeats: int) -> dict:
  """Times kernel and reference in turn on one seeded input; raises if their results differ."""
  kernel, reference, target = PAIRS[name]
  rng = np.random.default_rng(0)
  log_ratio = jnp.asarray(0.01 * rng.standard_normal(shape), jnp.float32)
  inputs = log_ratio, jnp.asarray(rng.random(shape) < 0.8)
  programs = {"kernel": jax.jit(kernel), "reference": jax.jit(reference)}
  results = [np.asarray(program(*inputs)) for program in programs.values()]
  np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4, err_msg=name)
  seconds = {which: [] for which in programs}
  for _ in range(repeats):
    for which, program in programs.items():
      seconds[which].append(measure.seconds(program, *inputs)[0])
  quartiles = {which: np.percentile(times, (25, 50, 75)).tolist()
               for which, times in seconds.items()}
  return {
      "kernel": name,
      "reference": reference.__name__,
      "shape": shape,
      "target": target,
      "ratio_of_medians": quartiles["kernel"][1] / quartiles["reference"][1],
      "quartiles_seconds": quartiles,
      "seconds": seconds,
  }


def table(rows: list[dict]) -> str:
  """Returns Markdown with medians and interquartile ranges in milliseconds."""
  header = ("kernel", "shape", "kernel, ms (IQR)", "reference", "reference, ms (IQR)", "ratio",
            "target")
  cells = [header, ("---",) * len(header)]
  for row in rows:
    times = {which: f"{1e3 * q[1]:.3g} ({1e3 * (q[2] - q[0]):.2g})"
             for which, q in row["quartiles_seconds"].items()}
    cells.append((row["kernel"], "{} x {}".format(*row["shape"]), times["kernel"], row["reference"],
                  times["reference"], f"{row['ratio_of_medians']:.2f}", str(row["target"])))
  return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--repeats", type=int, default=31, help="measured calls of each (default 31)")
  parser.add_argument("--json", type=Path, default=RESULT,
                      help="file of all numbers (default results/kernels.json)")
  args = parser.parse_args()
  if args.repeats < 1:
    parser.error(f"--repeats {args.repeats}: must be at least 1")
  environment = measure.environment()
  rows = [compare(name, shape, args.repeats) for name in PAIRS for shape in SHAPES]
  args.json.parent.mkdir(parents=True, exist_ok=True)
  result = {"environment": environment, "repeats": args.repeats, "rows": rows}
  args.json.write_text(json.dumps(result, indent=1) + "\n")
  print(table(rows))


if __name__ == "__main__":
  main()
