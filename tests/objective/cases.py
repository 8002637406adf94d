"""Ragged rows with holes in unsorted groups, and the changes to them that must not matter."""

import dataclasses
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.objective import advantages
from jaxrl_llm.registry import COLUMNS
from jaxrl_llm.types import AdvantageInputs

# four, three and two rows; 5 is a group of one
GROUPS = np.array([3, -1, 3, 8, -1, 3, 8, 5, 3, -1])
EMPTY = 4  # the row without a policy token


def make(dtype=np.float32, *, keep=None, seed=0, length=9, vocabulary=2,
         **fields) -> AdvantageInputs:
  """Numpy inputs with all fields and columns, NaN where an advantage must not look; `fields`
  replaces some.
  """
  rng, rows = np.random.default_rng(seed), len(GROUPS)
  mask = rng.random((rows, length)) < 0.7
  mask &= np.arange(length) < rng.integers(5, length + 1, rows)[:, None]
  # row 5 alone is the longest of its group
  mask[[0, 2], 6:], mask[5, -2:], mask[EMPTY] = False, True, False
  kept = np.ones(rows, bool) if keep is None else np.asarray(keep)
  log_probs = np.log(rng.uniform(0.05, 0.95, (rows, length)))
  probability = np.exp(log_probs)
  given = {
      "rewards": rng.integers(0, 3, rows) / 2 + rng.normal(size=rows) / 8,
      "token_rewards": rng.normal(size=mask.shape),
      "anchor_log_probs": log_probs,
      "ref_log_probs": log_probs - 0.1,
      "sum_pi_squared": probability**2 + (1 - probability)**2 * rng.uniform(0.3, 1, mask.shape),
      "values": rng.normal(size=mask.shape),
      "correction_weights": rng.uniform(0, 2, mask.shape),
      "entropy": np.random.default_rng(seed + 1).uniform(0, 2, mask.shape),
  }
  given |= {name: value for name, value in fields.items() if name in given}
  seen = {1: kept, 2: mask & kept[:, None]}
  given = {name: None if x is None else np.where(seen[np.ndim(x)], x, np.nan).astype(dtype)
           for name, x in given.items()}
  columns = {name: np.where(seen[2], values, np.nan).astype(dtype)
             for name, values in of_columns(mask.shape, seed).items()}
  parts = np.random.default_rng(seed + 3).integers(0, 3, (rows, 3)) * np.array([1.0, 100.0, 0.1])
  given["reward_parts"] = np.where(kept[:, None], parts, np.nan).astype(dtype)
  starts = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
  given |= {
      "mask": mask, "tokens": rng.integers(0, vocabulary, mask.shape).astype(np.int32),
      "group_id": GROUPS, "keep": None if keep is None else kept, "columns": columns or None,
      "turn_id": np.where(mask, np.cumsum(starts, 1), 0).astype(np.int32)}
  as_given = ("mask", "tokens", "turn_id", "columns")
  return AdvantageInputs(**given | fields | {k: given[k] for k in fields if k not in as_given})


def of_columns(shape, seed: int) -> dict[str, np.ndarray]:
  """Returns an array of numbers from 0 to 1 for each column that is no field of AdvantageInputs."""
  names = set(COLUMNS.names()) - set(advantages.OPTIONAL)
  return {name: np.random.default_rng([seed, zlib.crc32(name.encode())]).uniform(0, 1, shape)
          for name in sorted(names)}


def on_device(inputs: AdvantageInputs) -> AdvantageInputs:
  return jax.tree.map(jnp.asarray, inputs)


def permuted(inputs: AdvantageInputs, order) -> AdvantageInputs:
  return jax.tree.map(lambda x: x[order], inputs)


def spread(inputs: AdvantageInputs, columns: np.ndarray, width: int) -> AdvantageInputs:
  """Entry [i, t] goes to column columns[i, t]; what opens in between is masked, NaN or token 7."""

  def move(x):
    if x.ndim == 1:
      return x
    fill = np.nan if x.dtype.kind == "f" else False if x.dtype == bool else 7
    out = np.full((x.shape[0], width), fill, x.dtype)
    np.put_along_axis(out, columns, x, 1)
    return out

  moved = jax.tree.map(move, dataclasses.replace(inputs, reward_parts=None))
  return dataclasses.replace(
      moved, reward_parts=inputs.reward_parts,
      turn_id=None if inputs.turn_id is None else np.where(moved.mask, moved.turn_id, 0))


def padded(inputs: AdvantageInputs) -> AdvantageInputs:
  """Three more columns, and two more rows of an existing group that are not kept."""
  width = inputs.mask.shape[1]
  columns = np.broadcast_to(np.arange(width), inputs.mask.shape)
  kept = np.ones(len(inputs.group_id), bool) if inputs.keep is None else inputs.keep
  wide = spread(dataclasses.replace(inputs, keep=kept), columns, width + 3)
  more = jax.tree.map(lambda x: np.concatenate([x, x[:2]]), wide)
  return dataclasses.replace(more, keep=np.append(wide.keep, [False, False]))


def with_tool_text(inputs: AdvantageInputs, seed=1) -> AdvantageInputs:
  """Up to four masked tokens inserted anywhere, at different places in each row."""
  rng = np.random.default_rng(seed)
  rows, width = inputs.mask.shape
  columns = np.stack([np.sort(rng.choice(width + 4, width, replace=False)) for _ in range(rows)])
  return spread(inputs, columns, width + 4)
