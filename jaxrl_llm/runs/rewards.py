"""The rewards of an update: shaped rewards [B], and the rows that count."""

import numpy as np

from jaxrl_llm.config import ConfigError
from jaxrl_llm.parallel import processes
from jaxrl_llm.registry import SHAPINGS
from jaxrl_llm.runs.rollout_batch import RolloutBatch
from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.tasks.rewards import TASK
from jaxrl_llm.tasks.shaping import overlong_penalty
from jaxrl_llm.types import Rollout
from jaxrl_llm.wiring.loop import RewardShaping


def trained_rewards(shaping: RewardShaping, batch: RolloutBatch,
                    iteration: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns (rewards, keep), both [B], that the update of an iteration reads, of this process's
  rows.

  A shaping may rank groups within the batch, so it is computed on the rows of all processes.

  Raises:
    PluginError: the shaping fails or returns no rewards.
  """
  if not shaping.multi_process:
    return _dealt(shaping, *shaped(batch.verdicts, batch.host, shaping), iteration)
  everyone = _gather_rewards(batch.verdicts, batch.host)
  rewards, keep = _dealt(shaping, *shaped(*everyone, shaping), iteration)
  local = processes.share(len(rewards))
  return rewards[local], keep[local]


def _gather_rewards(verdicts: Verdicts, host: Rollout) -> tuple[Verdicts, Rollout]:
  """Returns the arguments of `shaped` for the rows of all processes, in their order."""
  lengths = {name: getattr(host, name)
             for name in ("length", "prompt_length", "truncated", "group_id")}
  parts = processes.exchange("shaping", (verdicts.rewards, verdicts.correct, verdicts.keep,
                                         *lengths.values()))
  rewards, correct, keep, *columns = map(np.concatenate, zip(*parts, strict=True))
  return (Verdicts(rewards, correct, keep, [], []),
          host.replace(**dict(zip(lengths, columns, strict=True))))


def shaped(verdicts: Verdicts, host: Rollout,
           shaping: RewardShaping) -> tuple[np.ndarray, np.ndarray]:
  """Returns (rewards f32, keep bool), both [B], after the rules that depend on length.

  Args:
    host: the rows, on the host.

  Raises:
    PluginError: as `checked_rewards`, or the shaping raises.
  """
  cfg, rewards = shaping.cfg, verdicts.rewards
  new = (host.length - host.prompt_length).astype(np.float64)
  keep = verdicts.keep & ~host.truncated if cfg.mask_truncated else verdicts.keep
  if shaping.function is not None:
    with SHAPINGS.blamed(cfg.name):
      shaped_rewards = shaping.function(rewards, verdicts.correct, new, host.group_id, keep,
                                        shaping.numbers)
      rewards = checked_rewards(shaped_rewards, keep)
  if cfg.overlong_buffer:
    rewards = rewards + overlong_penalty(new, shaping.max_new_tokens, cfg.overlong_buffer,
                                         cfg.overlong_factor)
  return np.where(keep, rewards, 0.0).astype(np.float32), keep


def reward_parts(verdicts: Verdicts, keep: np.ndarray) -> np.ndarray:
  """Returns [B, K] f32, the components of each reward in the order of their names, before their
  weights; 0 where `keep` is False. A reward without components is one part.

  Args:
    keep: [B] bool, of this process's completions.

  Raises:
    ConfigError: a completion has other components than another.
  """
  rows = [dict(reward.components) or {TASK: reward.value} if counts else {}
          for reward, counts in zip(verdicts.given, keep, strict=True)]
  name_sets = {tuple(sorted(row)) for row in rows if row}
  for names in processes.exchange("reward parts", name_sets):
    name_sets |= names
  if len(name_sets) > 1:
    first, second = sorted(name_sets)[:2]
    raise ConfigError(
        f"advantage.name = 'gdpo' normalises each part of the reward in its group, and the parts "
        f"differ between completions: {', '.join(first)} against {', '.join(second)}. Fix: a "
        "reward that returns the same components for every completion.")
  names = next(iter(name_sets), (TASK,))
  return np.array([[row.get(name, 0.0) for name in names] for row in rows], np.float32)


def _dealt(shaping: RewardShaping, rewards: np.ndarray, keep: np.ndarray,
           iteration: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rewards as they are, unless the run is a control that shuffles them."""
  if shaping.shuffle_seed is None:
    return rewards, keep
  return shuffled(rewards, keep, shaping.shuffle_seed, iteration)


def checked_rewards(rewards, keep: np.ndarray) -> np.ndarray:
  """Returns a shaping's rewards [B] as f64; only rows in `keep` must be finite.

  Raises:
    TypeError: something else than one number for each row.
    ValueError: not finite in f32.
  """
  shape = np.shape(rewards)
  values = np.asarray(rewards) if shape == keep.shape else None
  if values is None or values.dtype.kind not in "biuf":
    kind = "None" if rewards is None else f"{type(rewards).__name__} of shape {list(shape)}"
    kind += "" if values is None else f" and {values.dtype}"
    raise TypeError(f"it returned {kind}; {len(keep)} rewards, one of each row, were expected")
  values = values.astype(np.float64)
  bad = np.flatnonzero(keep & ~(np.abs(values) <= np.finfo(np.float32).max))
  if len(bad):
    raise ValueError(f"it returned {values[bad[0]]} for row {bad[0]} of {len(keep)}; finite "
                     "numbers of float32 were expected")
  return values


def shuffled(rewards: np.ndarray, keep: np.ndarray, seed: int,
             iteration: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns a control: the same rewards and keeps, dealt to random rows of the batch."""
  order = np.random.default_rng((seed, iteration, 1)).permutation(len(rewards))
  return rewards[order], keep[order]
