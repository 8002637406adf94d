"""Saved rollouts of a run, read back as arrays."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from jaxrl_llm.config import Config
from jaxrl_llm.reporting.reader import Run, RunError, rollout_path
from jaxrl_llm.types import Rollout

PER_TOKEN = {
    "tokens": np.int32,
    "mask": bool,
    "behavior_log_probs": np.float32,
    "anchor_log_probs": np.float32
}
PER_ROW = {
    "prompt_length": np.int32,
    "truncated": bool,
    "stop_reason": np.int32,
    "policy_step": np.int32,
    "row_id": np.int32,
    "group_id": np.int32
}


@dataclasses.dataclass(frozen=True)
class Frozen:
  """One iteration's rows.

  Attributes:
    rollout: B rows, groups contiguous.
    rewards: [B] f32, as trained on.
    keep: [B] bool.
    anchor_log_probs: [B, L] f32; the behavior's where the run recorded no anchor.
  """

  rollout: Rollout
  rewards: np.ndarray
  keep: np.ndarray
  anchor_log_probs: np.ndarray


def load(run: Run, iteration: int, cfg: Config, pad_id: int) -> Frozen:
  """The rollouts of one iteration, padded to the run's row length.

  Raises:
    RunError: that iteration was not kept, or a row lacks a field.
  """
  kept = run.rollout_iterations()
  if iteration not in kept:
    raise RunError(f"--iteration={iteration}: the run keeps rollouts of iterations {_span(kept)}.")
  rows = run.rollouts(iteration)
  path = rollout_path(run.workdir, iteration)
  turns = {"turn_id", "void"} if any("turn_id" in row for row in rows) else set()
  for number, row in enumerate(rows, 1):
    missing = sorted((PER_TOKEN.keys() | PER_ROW.keys() | {"trained_reward", "keep"} | turns) -
                     row.keys())
    if missing:
      raise RunError(
          f"{path}, line {number}: no {', '.join(missing)}; rows written by this version have them."
      )
  per_row = {name: np.array([row[name] for row in rows], dtype) for name, dtype in PER_ROW.items()}
  per_token = {
      name:
          _padded([row[name]
                   for row in rows], cfg.row_length, dtype, pad_id if name == "tokens" else 0)
      for name, dtype in PER_TOKEN.items()
      if rows[0][name] is not None
  }
  if turns:
    per_token["turn_id"] = _padded([row["turn_id"] for row in rows], cfg.row_length, np.int32, 0)
    per_row["void"] = np.array([row["void"] for row in rows])
  anchor = per_token.pop("anchor_log_probs", per_token["behavior_log_probs"])
  length = np.array([len(row["tokens"]) for row in rows], np.int32)
  rollout = Rollout(**{
      name: jnp.asarray(x) for name, x in {
          **per_row,
          **per_token, "length": length
      }.items()
  })
  return Frozen(rollout, np.array([row["trained_reward"] for row in rows], np.float32),
                np.array([row["keep"] for row in rows]), anchor)


def _padded(rows: list[list], width: int, dtype, fill) -> np.ndarray:
  out = np.full((len(rows), width), fill, dtype)
  for i, row in enumerate(rows):
    out[i, :len(row)] = row
  return out


def _span(iterations: list[int]) -> str:
  return f"{iterations[0]} to {iterations[-1]}" if iterations else "none"
