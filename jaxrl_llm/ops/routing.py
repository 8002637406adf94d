"""The experts that a sampler sent each token to, by token, for the trainer to replay.

Source: arXiv 2510.11370 (R3). Shapes: N layers with experts, k experts per token, R rows that are
fed, S tokens of these, B rows of the rollout, P columns of the prompt, L of a row.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

NONE = -1  # where a token was not fed to the sampler: a router then chooses as without replay


def started(used: Int[Array, "N R S k"], prompt_length: Int[Array, " R"], group: int, room: int,
            at_end: bool) -> Int[Array, "B W N k"]:
  """Returns the experts of the prompts, repeated for the `group` rows of each, and `room` columns
  of NONE for completion tokens; int16.

  Args:
    used: of the prompts, P = S.
    at_end: whether prompts end at the last column that was fed, instead of starting at the first.
  """
  experts = _by_token(used)
  if at_end:
    width = experts.shape[1]
    column = jnp.minimum(jnp.arange(width) + width - prompt_length[:, None], width - 1)
    experts = jnp.take_along_axis(experts, column[..., None, None], axis=1)
  after = ((0, 0), (0, room), (0, 0), (0, 0))
  return jnp.pad(jnp.repeat(experts, group, axis=0), after, constant_values=NONE)


def entered(routing: Int[Array, "B W N k"], used: Int[Array, "N B 1 k"],
            column) -> Int[Array, "B W N k"]:
  """Returns `routing` with the experts of one more token of each row, at a column."""
  return lax.dynamic_update_slice_in_dim(routing, _by_token(used), column, 1)


def of_rows(routing: Int[Array, "B W N k"], prompt_length: Int[Array, " B"],
            count: Int[Array, " B"], width: int) -> Int[Array, "B L N k"]:
  """Returns `Rollout.routing` of rows with prompt and completion contiguous.

  Args:
    routing: completion tokens from column `width` on.
    count: [B], completion tokens. The last one was not fed, as far as its row is concerned.
  """
  columns = jnp.arange(routing.shape[1])
  of_completion = columns - prompt_length[:, None]
  source = jnp.where(of_completion < 0, columns, width + of_completion)
  source = jnp.minimum(source, len(columns) - 1)
  is_fed = of_completion < count[:, None] - 1
  rows = jnp.take_along_axis(routing, source[..., None, None], axis=1)
  return jnp.where(is_fed[..., None, None], rows, NONE)


def fed(routing: Int[Array, "B L N k"],
        feed: Callable[[Array], Array]) -> Int[Array, "N R S k"]:
  """Returns `Rollout.routing` as a network reads it; `feed` lays an array [B, L] out as the tokens
  are, [R, S].
  """
  layers, experts = routing.shape[2:]
  flat = jax.vmap(feed, -1, -1)(routing.reshape(*routing.shape[:2], -1).astype(jnp.int32))
  return jnp.moveaxis(flat.reshape(*flat.shape[:2], layers, experts), 2, 0)


def _by_token(routing: Int[Array, "N R S k"]) -> Int[Array, "R S N k"]:
  return jnp.moveaxis(routing, 0, 2).astype(jnp.int16)
