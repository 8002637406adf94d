"""What the update reads of the verdicts: shaped rewards, and the rows that count."""

import numpy as np

from jaxrl_llm.config import Config, ShapingConfig
from jaxrl_llm.parallel import processes
from jaxrl_llm.registry import SHAPINGS
from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.tasks.shaping import overlong_penalty
from jaxrl_llm.types import Rollout


def trained_rewards(cfg: Config, verdicts: Verdicts, host: Rollout,
                    iteration: int) -> tuple[np.ndarray, np.ndarray]:
  """(rewards, keep), both [B], that the update of an iteration reads, of this process's rows.

  A shaping may rank groups within the batch, so it is computed on the rows of all processes.
  """
  rewards, keep = shaped(*_of_all_processes(verdicts, host), cfg.shaping,
                         cfg.rollout.max_new_tokens)
  if cfg.task.shuffle_rewards:
    rewards, keep = shuffled(rewards, keep, cfg.seed, iteration)
  own = processes.share(len(rewards))
  return rewards[own], keep[own]


def _of_all_processes(verdicts: Verdicts, host: Rollout) -> tuple[Verdicts, Rollout]:
  """What `shaped` reads of the rows of all processes, in their order."""
  lengths = {name: getattr(host, name)
             for name in ("length", "prompt_length", "truncated", "group_id")}
  parts = processes.exchange("shaping", (verdicts.rewards, verdicts.correct, verdicts.keep,
                                         *lengths.values()))
  rewards, correct, keep, *found = map(np.concatenate, zip(*parts, strict=True))
  return (Verdicts(rewards, correct, keep, [], []),
          host.replace(**dict(zip(lengths, found, strict=True))))


def shaped(verdicts: Verdicts, host: Rollout, cfg: ShapingConfig,
           limit: int) -> tuple[np.ndarray, np.ndarray]:
  """(rewards f32, keep bool), both [B], after the rules that depend on length.

  Args:
    host: the rows, on the host.
    limit: the longest completion allowed, tokens.
  """
  new = (host.length - host.prompt_length).astype(np.float64)
  keep = verdicts.keep & ~host.truncated if cfg.mask_truncated else verdicts.keep
  shape = SHAPINGS[cfg.name].function
  rewards = shape(verdicts.rewards, verdicts.correct, new, host.group_id, keep,
                  SHAPINGS.numbers(cfg))
  if cfg.overlong_buffer:
    rewards = rewards + overlong_penalty(new, limit, cfg.overlong_buffer, cfg.overlong_factor)
  return np.where(keep, rewards, 0.0).astype(np.float32), keep


def shuffled(rewards: np.ndarray, keep: np.ndarray, seed: int,
             iteration: int) -> tuple[np.ndarray, np.ndarray]:
  """A control: the same rewards and keeps, dealt to random rows of the batch."""
  order = np.random.default_rng((seed, iteration, 1)).permutation(len(rewards))
  return rewards[order], keep[order]
