r"""What the completions of a group share, and what aggregations weigh, on SmolLM2's worked answers.

  python experiments/main.py --config=configs/smollm2_chains.py --workdir=runs/chains
  python experiments/smollm2/groups.py --workdir=runs/chains
  python experiments/smollm2/groups.py

The policy after the warm start samples 32 worked answers of each problem. A token's prefix is
shared if another completion of its group begins with the same tokens before it (what TEMPO's tree
can use). Weights: the share of each aggregation's total weight that right completions have, beside
their share of rows and of tokens. With --workdir the figures are measured and stored in
groups.json; without it the page's part is written from that file.
"""

import contextlib
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from experiments.smollm2 import measurement, policies
from jaxrl_llm.config import AdvantageConfig, AggregationConfig
from jaxrl_llm.objective.advantages import get_advantage
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.types import AdvantageInputs

SIZES, POSITIONS = (8, 32), (1, 4, 8, 16, 24, 32, 48)
MODES = ("token", "sequence", "balanced")


def completions(tokens: np.ndarray, mask: np.ndarray) -> list[tuple[int, ...]]:
  """Returns the sampled tokens of each row."""
  return [tuple(row[live].tolist()) for row, live in zip(tokens, mask, strict=True)]


def shared(rows: list[tuple[int, ...]]) -> dict[int, tuple[int, int]]:
  """Returns, by position counted from 1, (tokens whose prefix another row has, tokens) of a group.

  Every token at position 1 has the empty prefix, which all rows share.
  """
  out = {}
  for t in range(1, max(map(len, rows)) + 1):
    prefixes = [row[:t - 1] for row in rows if len(row) >= t]
    counts = {prefix: prefixes.count(prefix) for prefix in set(prefixes)}
    out[t] = (sum(counts[prefix] > 1 for prefix in prefixes), len(prefixes))
  return out


def shares(rows: list[tuple[int, ...]], group: int, size: int) -> dict:
  """Returns the share of tokens with a shared prefix, of all and by position, where groups of
  `group` rows are cut into groups of `size`.
  """
  sums: dict[int, np.ndarray] = {}
  for begin in range(0, len(rows) // group * group, group):
    for first in range(begin, begin + group - size + 1, size):
      for t, pair in shared(rows[first:first + size]).items():
        sums[t] = sums.get(t, np.zeros(2)) + pair
  totals = sum(sums.values())
  return {"all": float(totals[0] / totals[1]),
          "positions": {str(t): float(sums[t][0] / sums[t][1]) for t in POSITIONS if t in sums}}


def weights(mask: np.ndarray, rewards: np.ndarray, group: int) -> dict:
  """Returns lengths of right and wrong rows, and what share of the total weight of each aggregation
  the right rows have; groups without a difference left out.
  """
  right = rewards > 0
  by_group = right.reshape(-1, group)
  mixed = np.repeat(by_group.any(1) & ~by_group.all(1), group)
  group_id = jnp.arange(len(right)) // group
  advantages = get_advantage("grpo")(
      AdvantageInputs(rewards=jnp.asarray(rewards), mask=jnp.asarray(mask),
                      tokens=jnp.zeros(mask.shape, jnp.int32), group_id=group_id),
      AdvantageConfig("grpo"))
  lengths = mask.sum(1)
  out = {"groups": int(mixed.sum()) // group, "right": float(lengths[mixed & right].mean()),
         "wrong": float(lengths[mixed & ~right].mean()),
         "rows": float(right[mixed].mean()),
         "tokens": float(lengths[mixed & right].sum() / lengths[mixed].sum())}
  for mode in MODES:
    weight = np.asarray(loss_weights(jnp.asarray(mask), advantages, group_id,
                                     AggregationConfig(mode), keep=jnp.asarray(mixed))).sum(1)
    out[mode] = float(weight[right].sum() / weight.sum())
  return out


def measure(workdir: Path, batches: int) -> dict:
  """Returns the figures of completions of fresh problems."""
  group = max(SIZES)
  run = policies.of_run(workdir, group_size=group, prompts=4)
  with contextlib.closing(run.sampler):
    parts = list(run.sample(run.params(0), batches))
  rows = [row for rollout, _ in parts for row in completions(rollout.tokens, rollout.mask)]
  mask = np.concatenate([rollout.mask for rollout, _ in parts])
  rewards = np.concatenate([reward for _, reward in parts])
  return {"rows": len(rows), "accuracy": float((rewards > 0).mean()),
          "shared": {str(size): shares(rows, group, size) for size in SIZES},
          "weights": {str(size): weights(mask, rewards, size) for size in SIZES}}


def text(results: dict) -> str:
  """Returns the tables of the page."""
  prefixes = [(size, f"{of['all']:.1%}", *(f"{of['positions'][str(t)]:.1%}"
                                           if str(t) in of["positions"] else "-"
                                           for t in POSITIONS))
              for size, of in results["shared"].items()]
  weighed = [(size, of["groups"], f"{of['right']:.1f}", f"{of['wrong']:.1f}",
              *(f"{of[name]:.1%}" for name in ("rows", "tokens", *MODES)))
             for size, of in results["weights"].items()]
  return "\n".join((
      f"{results['rows']:,} completions, {results['accuracy']:.1%} right. Tokens whose prefix "
      "another completion of the group has:\n",
      markdown_table(("group", "all tokens", *(f"t = {t}" for t in POSITIONS)), prefixes),
      "Groups with both: mean length, and the right completions' share of rows, of tokens, and of "
      "each aggregation's weight:\n",
      markdown_table(("group", "groups", "tokens of a right one", "of a wrong one", "rows",
                      "tokens", *MODES), weighed)))


if __name__ == "__main__":
  measurement.main(__doc__, "groups", measure, text, "4 problems")
