"""Dynamic sampling (DAPO, arXiv 2503.14476): which groups teach nothing and are sampled again."""

import numpy as np

from jaxrl_llm.config import Config
from jaxrl_llm.runs.verdicts import Verdicts

MIXED, ALL_RIGHT, ALL_WRONG, UNSCORED = range(4)
# Metrics of the sampler that are summed over several batches; the others are ratios.
SUMMED = {"rollout/chunks", "tool/calls", "time/tools", "server/failed_groups",
          "server/redrawn_batches", "time/server_away"}


class DriedUpError(RuntimeError):
  """Dynamic sampling found too few groups whose rewards differ."""


def group_kinds(verdicts: Verdicts, group_size: int) -> np.ndarray:
  """The kind of each group, by the rewards of its kept rows.

  MIXED: they differ. ALL_RIGHT, ALL_WRONG: they are equal. UNSCORED: fewer than two rows are kept.
  """
  rewards = verdicts.rewards.reshape(-1, group_size)
  keep = verdicts.keep.reshape(-1, group_size)
  correct = verdicts.correct.reshape(-1, group_size)
  low = np.where(keep, rewards, np.inf).min(1)
  high = np.where(keep, rewards, -np.inf).max(1)
  constant = np.where((correct | ~keep).all(1), ALL_RIGHT, ALL_WRONG)
  return np.where(keep.sum(1) < 2, UNSCORED, np.where(high > low, MIXED, constant))


def pooled_metrics(samplers: list[dict[str, float]]) -> dict[str, float]:
  """The sampler's metrics over several batches: counts and seconds are summed, ratios averaged."""
  pooled = {}
  for name in samplers[0]:
    pool = np.sum if name in SUMMED else np.mean
    pooled[name] = float(pool([metrics[name] for metrics in samplers]))
  return pooled


def dried_up(cfg: Config, tally: np.ndarray) -> DriedUpError:
  """The error after `max_draws` batches; `tally` counts their groups by kind."""
  total = tally.sum()
  percent = 100 * tally / max(1, total)
  return DriedUpError(
      f"dynamic sampling ran dry: {tally[MIXED]} of {total} groups in "
      f"{cfg.dynamic_sampling.max_draws} draws have rewards that differ, rollout.prompts = "
      f"{cfg.rollout.prompts} are needed ({percent[ALL_RIGHT]:.0f} % constant and right, "
      f"{percent[ALL_WRONG]:.0f} % constant and wrong, {percent[UNSCORED]:.0f} % unscored). "
      "Fix: problems nearer to what the policy can just do, a larger rollout.group_size, a larger "
      "dynamic_sampling.max_draws, or fewer prompts.")
