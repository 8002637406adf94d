"""Times the train step on padded and on packed rows, which take turns in one process.

  python experiments/bench/packing.py
  python experiments/bench/packing.py --cases ragged --rows 128 --length 512 --micro 32 --reps 9

`ragged`: random rows with mean/max 0.4. A padded step takes `--micro` micro-batches of rows, a
packed one micro-batches of as many tokens. A perfect packing needs the share of the padded step's
time that the real tokens are of all columns. Target: at most 15 % above it.

`shared`: groups of 8 rows, prompts of 1024 tokens and responses of 512. Packed rows compute a
prompt once for its group. Predicted is the ratio of the matrix products that are needed: of each
token with the weights, of each predicted one with the head, and of each with the tokens it sees.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from experiments.planning import model_flops
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.training.packing import ROWS, Packer, Packing
from jaxrl_llm.types import Bins, Rollout

import measure
import workload

RESULT = Path(__file__).parent / "results" / "packing.json"
TARGET = 1.15
LEAST, GROUP = 16, 8  # prompt tokens of a ragged row; rows of a group
PROMPT, RESPONSE, GROUPS = 1024, 512, 2
# Attention's part of a token is that of models of 1 to 8 billion parameters: small.
WIDE = ModelConfig(vocab_size=2048, width=512, num_layers=2, num_heads=2, num_kv_heads=1,
                   head_dim=64, mlp_width=1536, rope_base=1e6)


def ragged(rows: int, longest: int) -> np.ndarray:
  """Returns the tokens of each row, [rows], LEAST + 1 to `longest`, with mean / max = 0.4.

  They are quantiles of a power of u, u uniform, in a seeded order.
  """
  quantiles = (np.arange(rows) + 0.5) / rows
  least = LEAST + 1
  share = (workload.MEAN_OVER_MAX * longest - least) / (longest - least)
  lengths = np.round(least + (longest - least) * quantiles**(1 / share - 1)).astype(np.int32)
  lengths[-1] = longest
  return np.random.default_rng(0).permutation(lengths)


def sampled(lengths: np.ndarray, shape: workload.Shape) -> Rollout:
  """Returns random rows of these lengths; the rows of a group have the same prompt."""
  rng, rows = np.random.default_rng(1), np.arange(len(lengths), dtype=np.int32)
  at = np.arange(shape.prompt + shape.new)
  held = at < lengths[:, None]
  prompt = at < shape.prompt
  ids = rng.integers(workload.FIRST_ID, shape.model.vocab_size, held.shape)
  tokens = np.where(held, np.where(prompt, ids[rows // GROUP * GROUP], ids), 0).astype(np.int32)
  mask = held & ~prompt
  behavior = np.where(mask, -np.log(shape.model.vocab_size), 0).astype(np.float32)
  return Rollout(tokens, mask, lengths, np.full_like(rows, shape.prompt), behavior,
                 rows < 0, 0 * rows, 0 * tokens, rows, rows // GROUP)


def compare(shape: workload.Shape, lengths: np.ndarray, micro: int, packer: Packer,
            reps: int) -> dict:
  """Returns seconds of the steps that took turns, and the ratios that they are compared with."""
  padded, packed = workload.build(shape, micro), workload.build(shape, 1)
  host = sampled(lengths, shape)
  batch = workload.train_batch(packed, jax.device_put(host), host)
  state, packing = workload.start(packed), packer.pack(host)
  times: dict = {"padded": [], "packed": []}

  def packed_step(state):
    return packed.step(state, batch, packer.pack(host))  # a run plans each step, too

  for _ in range(reps + 1):
    spent, (state, _) = measure.seconds(padded.step, state, batch)
    times["padded"].append(spent)
    spent, (state, _) = measure.seconds(packed_step, state)
    times["packed"].append(spent)
  times = {name: values[1:] for name, values in times.items()}  # the first compiles
  padded_lengths = np.full(len(lengths), shape.prompt + shape.new)
  laid = lengths.sum() - (0 if packing.shared is None else packing.shared.sum())
  columns = int(packing.count) * packing.rows.shape[1] * packer.bins.capacity
  return {
      "rows": len(lengths), "length": shape.prompt + shape.new, "seconds": times,
      "micro_batches": {"padded": micro, "packed": int(packing.count)},
      "filled": float(laid / columns),
      "tokens": float(laid / (len(lengths) * (shape.prompt + shape.new))),
      "products": needed(shape, lengths, packing) / needed(shape, padded_lengths),
      "measured": float(np.median(times["packed"]) / np.median(times["padded"])),
  }


def needed(shape: workload.Shape, lengths: np.ndarray, packing: Packing | None = None) -> float:
  """Returns the operations of the products of a forward pass over rows of these lengths.

  Args:
    packing: says which tokens of a row are those of another one; None: none are.
  """
  lengths = lengths.astype(float)
  shared = np.zeros_like(lengths)
  if packing is not None and packing.shared is not None:
    rows = packing.rows.reshape(-1)
    held = rows < len(lengths)
    shared[rows[held]] = packing.shared.reshape(-1)[held]
  m = shape.model
  weights = 2 * model_flops.layer_weights(m) * (lengths - shared)
  head = 2 * model_flops.head_weights(m) * (lengths - shape.prompt)
  seen = [model_flops.attention(m, *ends) for ends in zip(shared, lengths, strict=True)]
  return float(np.sum(weights + head) + np.sum(seen))


def compare_ragged(args: argparse.Namespace) -> dict:
  shape = workload.Shape(prompts=args.rows // GROUP, prompt=LEAST, new=args.length - LEAST)
  packer = Packer(Bins(args.length, ROWS), args.rows // args.micro, 1)
  return compare(shape, ragged(args.rows, args.length), args.micro, packer, args.reps)


def compare_shared(args: argparse.Namespace) -> dict:
  """A bin holds a group; a padded micro-batch has about as many tokens."""
  shape = workload.Shape(WIDE, prompts=GROUPS, prompt=PROMPT, new=RESPONSE)
  tile = 128
  capacity = -(-(PROMPT + GROUP * (RESPONSE + 1)) // tile) * tile
  packer = Packer(Bins(capacity, GROUP), 1, 1, shared_prompts=True)
  return compare(shape, np.full(GROUPS * GROUP, PROMPT + RESPONSE, np.int32), 2 * GROUPS, packer,
                 args.reps)


CASES = {"ragged": compare_ragged, "shared": compare_shared}


def report(name: str, case: dict) -> str:
  """Returns the numbers of a case as text."""
  used = case["micro_batches"]
  lines = [f"{name}: {case['rows']} rows of up to {case['length']} tokens"]
  lines += [f"  {kind}: median {np.median(values):.3f} s, {min(values):.3f} to {max(values):.3f} s,"
            f" {used[kind]} micro-batches" for kind, values in case["seconds"].items()]
  over = case["measured"] / case["tokens"]
  return "\n".join([
      *lines,
      f"  packed over padded: tokens {case['tokens']:.3f}, needed products "
      f"{case['products']:.3f}, measured {case['measured']:.3f}, which is {over:.2f} times the "
      "ratio of tokens"
      + (f" (target: at most {TARGET})" if name == "ragged" else ""),
      f"  columns of bins that hold a token: {case['filled']:.1%}",
  ])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--cases", default=",".join(CASES),
                      help="names, separated by commas (default: all)")
  parser.add_argument("--rows", type=int, default=64, help="ragged rows, a multiple of 8 (64)")
  parser.add_argument("--length", type=int, default=256, help="of the longest ragged row (256)")
  parser.add_argument("--micro", type=int, default=16,
                      help="micro-batches of the padded step of ragged rows (16)")
  parser.add_argument("--reps", type=int, default=5, help="measured steps of each kind (5)")
  parser.add_argument("--json", type=Path, default=RESULT,
                      help="file of all numbers (default results/packing.json)")
  args = parser.parse_args()
  unknown = set(args.cases.split(",")) - set(CASES)
  if unknown:
    parser.error(f"--cases {sorted(unknown)}: allowed are {', '.join(CASES)}")
  cases = {name: CASES[name](args) for name in args.cases.split(",")}
  args.json.write_text(json.dumps({"environment": measure.environment()} | cases, indent=1) + "\n")
  print("\n".join(report(*item) for item in cases.items()))


if __name__ == "__main__":
  main()
