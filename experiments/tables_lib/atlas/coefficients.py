"""Gradient coefficients of the estimators, by automatic differentiation of the registered losses.

The coefficient of a token is the weight that multiplies A grad log pi(a_t) in the gradient that an
optimizer ascends. It is 1 for REINFORCE, and 0 for a token that a bound has dropped.

An estimator reads full rows, so a coefficient belongs to a token *in a row*. `even_rows` makes the
rows of the atlas: the token is the last of t tokens, and the earlier ones share what is left of the
prefix sum evenly.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.config import ConfigError, EstimatorConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.registry import ESTIMATORS

POSITIONS = (1, 10, 100)
SIGNS = (1.0, -1.0)
SPAN = 3.0  # largest |log-ratio| and |prefix sum| that the atlas shows, nats
# Geometric mean of pi and anchor: the largest with which neither exceeds 1 at |log-ratio| = SPAN.
LOG_PROBABILITY = -SPAN / 2


@dataclasses.dataclass(frozen=True)
class Rows:
  """Rows with one token whose coefficient is asked for.

  Attributes:
    log_ratios: [N, T] f64, log(pi / anchor) of each token, nats; not read beyond `length`.
    length: [N] int, tokens of the row, from 1 to T.
    position: [N] int, the token in question, from 1 to `length`.
    advantage: [N] f64, of every token of the row, not 0.
    log_probability: [N] f64, mean of log pi and log anchor of every token, nats.
  """

  log_ratios: np.ndarray
  length: np.ndarray
  position: np.ndarray
  advantage: np.ndarray
  log_probability: np.ndarray


def even_rows(position: int, sums, log_ratios, *, sign: float = 1.0, later: Sequence[float] = (),
              log_probability: float = LOG_PROBABILITY) -> Rows:
  """Returns the rows of the atlas, one for each pair of `sums` and `log_ratios`.

  Args:
    position: t. The t - 1 earlier tokens share L_t - l_t evenly. At t = 1 there are none, and
      L_1 = l_1 whatever `sums` says.
    sums: [N] prefix sums L_t, with the token's own log-ratio, nats.
    log_ratios: [N] log-ratios l_t of the token, nats.
    sign: the advantage of every token.
    later: log-ratios of tokens after t; by default the row ends with t.
    log_probability: see `Rows`.
  """
  sums, token_log_ratios = np.broadcast_arrays(np.asarray(sums, np.float64),
                                               np.asarray(log_ratios, np.float64))
  count, earlier = len(token_log_ratios), np.zeros((len(token_log_ratios), position - 1))
  if position > 1:
    earlier += ((sums - token_log_ratios) / (position - 1))[:, None]
  after = np.broadcast_to(np.asarray(later, np.float64), (count, len(later)))
  rows = np.concatenate([earlier, token_log_ratios[:, None], after], 1)
  return Rows(rows, np.full(count, rows.shape[1]), np.full(count, position),
              np.full(count, sign), np.full(count, log_probability))


def stack(parts: Sequence[Rows]) -> Rows:
  """Returns the rows of all parts, one after the other, padded on the right to one width."""
  width = max(part.log_ratios.shape[1] for part in parts)
  columns = {}
  for field in dataclasses.fields(Rows):
    arrays = [getattr(part, field.name) for part in parts]
    if field.name == "log_ratios":
      arrays = [np.pad(a, ((0, 0), (0, width - a.shape[1]))) for a in arrays]
    columns[field.name] = np.concatenate(arrays)
  return Rows(**columns)


def row_coefficients(cfg: EstimatorConfig, rows: Rows) -> np.ndarray:
  """Returns the coefficient of each row's token: -d(sum of the row's losses)/d(log pi_t) / A.

  The derivative is total: contributions through other tokens' losses are included. Each row is a
  separate optimizer batch, which matters only to statistics of the batch (m2po). Columns that an
  estimator reads besides are `estimators.stand_ins`.

  Returns:
    [N] f64.

  Raises:
    ConfigError: an unknown estimator, a number that it does not read, a function that fails on
      these rows, or a coefficient that is not finite.
  """
  estimators.resolve(cfg)
  with jax.enable_x64(True), ESTIMATORS.blamed(cfg.name):
    arrays = (jnp.asarray(getattr(rows, f.name)) for f in dataclasses.fields(Rows))
    values = np.asarray(jax.jit(jax.vmap(_one_row(cfg)))(*arrays))
  nonfinite = np.flatnonzero(~np.isfinite(values))
  if nonfinite.size:
    first = nonfinite[0]
    raise ConfigError(
        f"estimator {cfg.name!r} ({estimators.spec(cfg.name).where}): its gradient is "
        f"{values[first]} at token {rows.position[first]} of a row with log-ratios "
        f"{_short(rows.log_ratios[first, :rows.length[first]])} and A = {rows.advantage[first]:g}; "
        "finite ones are allowed. Fix: bound the ratio, as common.masked_log_ratio does.")
  return values


def batched_coefficients(cfg: EstimatorConfig, parts: Sequence[Rows]) -> list[np.ndarray]:
  """Returns `row_coefficients` of each part, computed together; raises the same errors."""
  ends = np.cumsum([len(part.length) for part in parts])
  return np.split(row_coefficients(cfg, stack(parts)), ends[:-1])


def _one_row(cfg: EstimatorConfig) -> Callable:
  """Returns a function of one row, as in `Rows` without the leading N, to its coefficient."""
  estimator = estimators.get_estimator(cfg.name)
  prepare = estimators.spec(cfg.name).prepare

  def coefficient(log_ratios, length, position, advantage, log_probability):
    mask = (jnp.arange(len(log_ratios)) < length)[None]
    anchor = (log_probability - log_ratios / 2)[None]
    advantages = jnp.full_like(anchor, advantage)

    columns = estimators.stand_ins(cfg, anchor, mask)

    def loss(log_probs):
      weights = {} if prepare is None else {
          "weights": prepare(log_probs, anchor, advantages, mask, cfg, **columns)}
      out = estimator(log_probs, anchor, advantages, mask, cfg, **columns, **weights)
      return jnp.sum(jnp.where(mask, out.per_token_loss, 0.0))

    gradient = jax.grad(loss)((log_probability + log_ratios / 2)[None])
    return 0.0 - gradient[0, position - 1] / advantage  # 0.0 rather than -0.0 on dropped tokens

  return coefficient


def coefficients(cfg: EstimatorConfig | str, sums, log_ratios, *, positions=POSITIONS,
                 signs=SIGNS, **of_row) -> np.ndarray:
  """Returns the coefficients on a grid of prefix sums and token log-ratios.

  Args:
    cfg: the estimator, or its name for the default numbers.
    sums: [S] prefix sums L_t, nats.
    log_ratios: [K] log-ratios l_t, nats.
    positions: the t's, from 1.
    signs: advantages of the row, not 0.
    of_row: `later` and `log_probability` of `even_rows`.

  Returns:
    [signs, positions, S, K] f64. At t = 1 it does not depend on the prefix sum, which is l_1 there.

  Raises:
    ConfigError: see `row_coefficients`.
  """
  cfg = EstimatorConfig(cfg) if isinstance(cfg, str) else cfg
  sums, log_ratios = np.asarray(sums, np.float64), np.asarray(log_ratios, np.float64)
  grid = [axis.reshape(-1) for axis in np.meshgrid(sums, log_ratios, indexing="ij")]
  shape = (len(sums), len(log_ratios))
  parts = [even_rows(t, *(grid if t > 1 else (log_ratios, log_ratios)), sign=sign, **of_row)
           for sign in signs for t in positions]
  cells = batched_coefficients(cfg, parts)
  return np.stack([np.broadcast_to(c.reshape(-1, len(log_ratios)), shape) for c in cells]
                  ).reshape(len(signs), len(positions), *shape)


def _short(values: np.ndarray) -> str:
  """Returns the first and the last of the values."""
  texts = [f"{x:.3g}" for x in values]
  return ", ".join(texts if len(texts) <= 4 else [*texts[:2], "...", texts[-1]])
