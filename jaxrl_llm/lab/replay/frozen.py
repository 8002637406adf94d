"""Saved rollouts of a run, read back as arrays."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl_llm.reporting.reader import RunError, RunFolder, rollout_path
from jaxrl_llm.types import Rollout

PER_TOKEN = {
    "tokens": np.int32,
    "mask": bool,
    "behavior_log_probs": np.float32,
    "anchor_log_probs": np.float32,
}
PER_ROW = {
    "prompt_length": np.int32,
    "truncated": bool,
    "stop_reason": np.int32,
    "row_id": np.int32,
    "group_id": np.int32,
}
OTHER_KEYS = {"policy_step", "trained_reward", "keep"}
TURN_KEYS = {"turn_id", "void"}  # only in runs with an environment


@dataclasses.dataclass(frozen=True)
class Frozen:
  """The rows of one iteration.

  Attributes:
    rollout: B rows, groups contiguous.
    rewards: [B] f32, as trained on.
    keep: [B] bool.
    anchor_log_probs: [B, L] f32; the behavior's if the run recorded no anchor.
  """

  rollout: Rollout
  rewards: np.ndarray
  keep: np.ndarray
  anchor_log_probs: np.ndarray


def load(run: RunFolder, iteration: int, row_length: int, pad_id: int) -> Frozen:
  """Reads the rollouts of one iteration, padded to the run's row length.

  Raises:
    RunError: the run did not keep that iteration, or a row lacks a key.
  """
  iterations = run.rollout_iterations()
  if iteration not in iterations:
    raise RunError(
        f"--iteration={iteration}: the run keeps rollouts of iterations {_span(iterations)}.")
  rows = run.rollouts(iteration)
  has_turns = any("turn_id" in row for row in rows)
  _check_keys(rows, has_turns, rollout_path(run.workdir, iteration))
  arrays = {name: np.array([row[name] for row in rows], dtype) for name, dtype in PER_ROW.items()}
  for name, dtype in PER_TOKEN.items():
    if rows[0][name] is not None:
      arrays[name] = _padded(rows, name, row_length, dtype, pad_id if name == "tokens" else 0)
  if has_turns:
    arrays["turn_id"] = _padded(rows, "turn_id", row_length, np.int32, 0)
    arrays["void"] = np.array([row["void"] for row in rows])
  policy_step = np.array([row["policy_step"] for row in rows], np.int32)
  arrays["policy_step"] = np.where(arrays["mask"], policy_step[:, None], 0)
  anchor = arrays.pop("anchor_log_probs", arrays["behavior_log_probs"])
  arrays["length"] = np.array([len(row["tokens"]) for row in rows], np.int32)
  return Frozen(
      rollout=Rollout(**{name: jnp.asarray(x) for name, x in arrays.items()}),
      rewards=np.array([row["trained_reward"] for row in rows], np.float32),
      keep=np.array([row["keep"] for row in rows]),
      anchor_log_probs=anchor,
  )


def _check_keys(rows: list[dict[str, Any]], has_turns: bool, path: str) -> None:
  needed = PER_TOKEN.keys() | PER_ROW.keys() | OTHER_KEYS | (TURN_KEYS if has_turns else set())
  for number, row in enumerate(rows, 1):
    missing = sorted(needed - row.keys())
    if missing:
      raise RunError(f"{path}, line {number}: no {', '.join(missing)}; rows written by this "
                     "version have them.")


def _padded(rows: list[dict[str, Any]], name: str, width: int, dtype, fill) -> np.ndarray:
  """Returns the lists `name` of the rows as [B, width], filled on the right."""
  out = np.full((len(rows), width), fill, dtype)
  for i, row in enumerate(rows):
    out[i, :len(row[name])] = row[name]
  return out


def _span(iterations: list[int]) -> str:
  return f"{iterations[0]} to {iterations[-1]}" if iterations else "none"
