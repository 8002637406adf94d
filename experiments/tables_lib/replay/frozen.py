"""Saved rollouts of a run, read back as arrays."""

from collections.abc import Set
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.report.rollout_rows import LISTS
from experiments.report.run_folder import RunFolder
from experiments.tables_lib.replay.replay import Frozen
from jaxrl_llm.config import RolloutConfig
from jaxrl_llm.reporting.reader import COPY, RunError
from jaxrl_llm.store.files import rollout_path
from jaxrl_llm.types import Rollout

PER_TOKEN = {name: dtype for name, dtype in LISTS.items() if name != "turn_id"}
PER_ROW = {
    "prompt_length": np.int32,
    "truncated": bool,
    "stop_reason": np.int32,
    "row_id": np.int32,
    "group_id": np.int32,
}
OTHER_KEYS = {"policy_step", "trained_reward", "keep"}
TURN_KEYS = {"turn_id", "void"}  # only in runs with an environment


def load(run: RunFolder, iteration: int, rollout: RolloutConfig, pad_id: int) -> Frozen:
  """Reads the rollouts of one iteration, padded to the run's row length.

  Raises:
    RunError: the run did not keep that iteration, a file of it is damaged, or a row lacks a key.
  """
  iterations = run.rollout_iterations()
  if iteration not in iterations:
    raise RunError(
        f"--iteration={iteration}: the run keeps rollouts of iterations {_span(iterations)}. Fix: "
        "one of them, or another run.")
  rows = run.rollouts(iteration)
  has_turns = any("turn_id" in row for row in rows)
  path, columns = rollout_path(run.workdir, iteration), PER_TOKEN.keys() | (
      {"turn_id"} if has_turns else set())
  _check_keys(rows, has_turns, path)
  arrays = {name: _facts(rows, name, dtype, path) for name, dtype in PER_ROW.items()}
  _check_lengths(rows, columns, rollout, path)
  for name in columns:
    if rows[0][name] is not None:
      arrays[name] = _padded(rows, name, rollout.row_length, pad_id if name == "tokens" else 0)
  if has_turns:
    arrays["void"] = _facts(rows, "void", bool, path)
  if "policy_steps" in rows[0]:
    arrays["policy_step"] = _padded(rows, "policy_steps", rollout.row_length, 0)
  else:
    policy_step = _facts(rows, "policy_step", np.int32, path)
    arrays["policy_step"] = np.where(arrays["mask"], policy_step[:, None], 0)
  anchor = arrays.pop("anchor_log_probs", arrays["behavior_log_probs"])
  arrays["length"] = np.array([len(row["tokens"]) for row in rows], np.int32)
  return Frozen(
      rollout=Rollout(**{name: jnp.asarray(x) for name, x in arrays.items()}),
      rewards=_facts(rows, "trained_reward", np.float32, path),
      keep=_facts(rows, "keep", bool, path),
      anchor_log_probs=anchor,
  )


def _check_keys(rows: list[dict[str, Any]], has_turns: bool, path: str) -> None:
  turn_keys = TURN_KEYS if has_turns else set()
  required_keys = PER_TOKEN.keys() | PER_ROW.keys() | OTHER_KEYS | turn_keys
  for number, row in enumerate(rows, 1):
    missing = sorted(required_keys - row.keys())
    if missing:
      raise RunError(f"{path}, line {number}: no {', '.join(missing)}; rows written by this "
                     "version have them. Fix: another iteration or run.")


def _facts(rows: list[dict[str, Any]], name: str, dtype, path: str) -> np.ndarray:
  """Returns an entry of all rows, [B]."""
  try:
    return np.array([row[name] for row in rows], dtype)
  except (TypeError, ValueError, OverflowError) as error:
    raise RunError(f"{path}: {name} is not a number in each line ({error}). {COPY}") from error


def _check_lengths(rows: list[dict[str, Any]], columns: Set[str], rollout: RolloutConfig,
                   path: str) -> None:
  """Refuses rows whose columns differ in length or in being there, and groups that are incomplete.

  Raises:
    RunError: naming file and line.
  """
  if not rows or len(rows) % rollout.group_size:
    raise RunError(f"{path}: {len(rows)} completions are not in groups of rollout.group_size = "
                   f"{rollout.group_size}. {COPY}")
  present = {name for name in columns if rows[0][name] is not None}
  for number, row in enumerate(rows, 1):
    lengths = {name: len(row[name]) for name in sorted(columns) if row[name] is not None}
    if lengths.keys() != present or "behavior_log_probs" not in present:
      raise RunError(f"{path}, line {number}: columns {', '.join(lengths) or 'none'}; the first "
                     f"line has {', '.join(sorted(present)) or 'none'}. {COPY}")
    shortest, longest = min(lengths.values()), max(lengths.values())
    if shortest < longest or not row["prompt_length"] <= longest <= rollout.row_length:
      raise RunError(f"{path}, line {number}: columns of {shortest} to {longest} tokens; all of "
                     f"one length from {row['prompt_length']} (the prompt's) to "
                     f"{rollout.row_length} were expected. {COPY}")


def _padded(rows: list[dict[str, Any]], name: str, width: int, fill) -> np.ndarray:
  """Returns the arrays `name` of the rows as [B, width], filled on the right."""
  out = np.full((len(rows), width), fill, LISTS.get(name, np.int32))
  for i, row in enumerate(rows):
    out[i, :len(row[name])] = row[name]
  return out


def _span(iterations: list[int]) -> str:
  return f"{iterations[0]} to {iterations[-1]}" if iterations else "none"
