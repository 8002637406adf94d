"""Time the prefix kernels against `jnp.cumsum` and `jax.lax.cummin`, and write every repetition.

  python experiments/bench/kernels.py
  python experiments/bench/kernels.py --repeats 5 --json out.json

Forward, jitted. Kernel and reference are called in turn in one process, after one call each that
compiles, so that a slower or faster moment of the machine meets both; absolute times drift, their
ratio less so. The reference gives the
same result with the same skipping of masked tokens: for the exclusive minimum it shifts and fills,
  too.

Targets: cumulative_log_ratio at most 1.5 times jnp.cumsum, prefix_min at most lax.cummin.
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
PAIRS = {"cumulative_log_ratio": (prefix.cumulative_log_ratio, cumsum, 1.5),
         "prefix_min": (prefix.prefix_min, cummin, 1.0)}


def compare(name: str, shape: tuple[int, int], repeats: int) -> dict:
  """Seconds of kernel and reference, alternated, on one seeded input; raises if their results
  differ.
  """
  kernel, reference, target = PAIRS[name]
  rng = np.random.default_rng(0)
  inputs = jnp.asarray(0.01 * rng.standard_normal(shape),
                       jnp.float32), jnp.asarray(rng.random(shape) < 0.8)
  programs = {"kernel": jax.jit(kernel), "reference": jax.jit(reference)}
  results = [np.asarray(program(*inputs)) for program in programs.values()]
  np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4, err_msg=name)
  seconds = {which: [] for which in programs}
  for _ in range(repeats):
    for which, program in programs.items():
      seconds[which].append(measure.seconds(lambda run=program: run(*inputs))[0])
  quartiles = {
      which: np.percentile(times, (25, 50, 75)).tolist() for which, times in seconds.items()
  }
  return {"kernel": name, "reference": reference.__name__, "shape": shape, "target": target,
          "ratio_of_medians": quartiles["kernel"][1] / quartiles["reference"][1],
          "quartiles_seconds": quartiles, "seconds": seconds}


def table(rows: list[dict]) -> str:
  """Markdown; median and interquartile range in milliseconds."""
  cells = [("kernel", "shape", "kernel, ms (IQR)", "reference", "reference, ms (IQR)", "ratio",
            "target"), ("---",) * 7]
  for row in rows:
    times = {
        which: f"{1e3 * q[1]:.3g} ({1e3 * (q[2] - q[0]):.2g})"
        for which, q in row["quartiles_seconds"].items()
    }
    cells.append((row["kernel"], "{} x {}".format(*row["shape"]), times["kernel"], row["reference"],
                  times["reference"], f"{row['ratio_of_medians']:.2f}", str(row["target"])))
  return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--repeats", type=int, default=31, help="calls of each, in turn (default 31)")
  parser.add_argument("--json", type=Path, default=RESULT,
                      help="file that all numbers are written to")
  args = parser.parse_args()
  if args.repeats < 1:
    parser.error(f"--repeats {args.repeats}: must be at least 1")
  environment = measure.environment()
  rows = [compare(name, shape, args.repeats) for name in PAIRS for shape in SHAPES]
  args.json.parent.mkdir(parents=True, exist_ok=True)
  args.json.write_text(
      json.dumps({
          "environment": environment,
          "repeats": args.repeats,
          "rows": rows
      }, indent=1) + "\n")
  print(table(rows))


if __name__ == "__main__":
  main()
