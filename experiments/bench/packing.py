"""Times the train step on ragged rows, padded and packed in turn, against the share of real tokens.

  python experiments/bench/packing.py
  python experiments/bench/packing.py --rows 128 --length 1024 --micro 16 --reps 9 --json out.json

The rows are random ids with mean/max 0.4. A padded step takes `--micro` micro-batches of rows; a
packed one takes micro-batches of as many tokens. A perfect packing would need the share of the
padded step's time that the real tokens are of all columns. Target: at most 15 % above it.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from jaxrl_llm.training.packing import ROWS, Packer
from jaxrl_llm.types import Bins, Rollout

import measure
import workload

RESULT = Path(__file__).parent / "results" / "packing.json"
TARGET = 1.15
PROMPT = 16  # tokens at least, of a row


def ragged(rows: int, longest: int) -> np.ndarray:
  """Returns the tokens of each row, [rows], PROMPT + 1 to `longest`, with mean / max = 0.4.

  They are quantiles of a power of u, u uniform, in a seeded order.
  """
  quantiles = (np.arange(rows) + 0.5) / rows
  least = PROMPT + 1
  share = (workload.MEAN_OVER_MAX * longest - least) / (longest - least)
  found = np.round(least + (longest - least) * quantiles**(1 / share - 1)).astype(np.int32)
  found[-1] = longest
  return np.random.default_rng(0).permutation(found)


def sampled(lengths: np.ndarray, longest: int, vocabulary: int) -> Rollout:
  """Returns random rows of these lengths, all of which but PROMPT tokens were sampled."""
  rng, rows = np.random.default_rng(1), np.arange(len(lengths), dtype=np.int32)
  at = np.arange(longest)
  held = at < lengths[:, None]
  mask = held & (at >= PROMPT)
  tokens = np.where(held, rng.integers(workload.FIRST_ID, vocabulary, held.shape), 0)
  behavior = np.where(mask, -np.log(vocabulary), 0).astype(np.float32)
  return Rollout(tokens.astype(np.int32), mask, lengths, np.full_like(rows, PROMPT), behavior,
                 rows < 0, 0 * rows, 0 * rows, rows, rows // 8)


def compare(args: argparse.Namespace) -> dict:
  """Returns seconds of the steps that took turns, and counts."""
  shape = workload.Shape(prompts=args.rows // 8, prompt=PROMPT, new=args.length - PROMPT)
  padded, packed = workload.build(shape, args.micro), workload.build(shape, 1)
  lengths = ragged(args.rows, args.length)
  host = sampled(lengths, args.length, shape.model.vocab_size)
  batch = workload.train_batch(packed, jax.device_put(host), host)
  packer = Packer(Bins(args.length, ROWS), args.rows // args.micro, 1)
  state, times = workload.start(packed), {"padded": [], "packed": []}
  for rep in range(args.reps + 1):  # the first compiles
    spent, (state, _) = measure.seconds(padded.step, state, batch)
    times["padded"].append(spent)
    # The plan is part of the step: a run makes one for each.
    spent, (state, _) = measure.seconds(lambda: packed.step(state, batch, packer(lengths)))
    times["packed"].append(spent)
  times = {name: values[1:] for name, values in times.items()}
  packing = packer(lengths)
  columns = int(packing.count) * packing.rows.shape[1] * args.length
  ideal = float(lengths.sum() / (args.rows * args.length))
  measured = float(np.median(times["packed"]) / np.median(times["padded"]))
  return {"rows": args.rows, "length": args.length, "micro": args.micro, "seconds": times,
          "micro_batches_used": int(packing.count), "filled": float(lengths.sum() / columns),
          "ideal": ideal, "measured": measured, "over_ideal": measured / ideal, "target": TARGET}


def report(found: dict) -> str:
  """Returns the numbers as text."""
  lines = [f"{name:<8} median {np.median(values):.3f} s, {min(values):.3f} to {max(values):.3f} s"
           for name, values in found["seconds"].items()]
  return "\n".join([
      *lines,
      f"micro-batches: {found['micro']} padded, {found['micro_batches_used']} packed, "
      f"whose columns are filled to {found['filled']:.1%}",
      f"packed over padded: ideal {found['ideal']:.3f}, measured {found['measured']:.3f}, "
      f"{found['over_ideal']:.2f} times the ideal (target: at most {found['target']})",
  ])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--rows", type=int, default=64, help="of a batch, a multiple of 8 (64)")
  parser.add_argument("--length", type=int, default=512, help="of the longest row, tokens (512)")
  parser.add_argument("--micro", type=int, default=16, help="micro-batches of the padded step (16)")
  parser.add_argument("--reps", type=int, default=5, help="measured steps of each kind (5)")
  parser.add_argument("--json", type=Path, default=RESULT,
                      help="file of all numbers (default results/packing.json)")
  args = parser.parse_args()
  found = compare(args)
  args.json.write_text(json.dumps({"environment": measure.environment()} | found, indent=1) + "\n")
  print(report(found))


if __name__ == "__main__":
  main()
