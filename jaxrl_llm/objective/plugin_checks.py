"""Traces methods of plugins once, on shapes, before anything compiles.

A plugin's mistake then costs one line and no time. The package's methods are left to its tests.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_llm.config import (
  AdvantageConfig,
  AggregationConfig,
  BatchConfig,
  EstimatorConfig,
  LossConfig,
)
from jaxrl_llm.objective import advantages, estimators, terms
from jaxrl_llm.objective.aggregation import loss_weights, regularizer_weights
from jaxrl_llm.ops import vocabulary
from jaxrl_llm.registry import ADVANTAGES, AGGREGATIONS, ESTIMATORS, LOSS_TERMS, Choice, Table
from jaxrl_llm.types import (
  AdvantageInputs,
  EffectiveShare,
  EstimatorOutput,
  Extreme,
  Histogram,
  Mean,
  Rollout,
  TokenStats,
  TrainBatch,
)

SHAPE = (2, 3)  # rows, tokens


def check_objective(loss: LossConfig, batch: BatchConfig) -> None:
  """Traces estimator, advantage, aggregation, loss terms and rules of the vocabulary on 2 x 3
  arrays, where a plugin brings them.

  Raises:
    ConfigError: naming the method's file and line: it raises, or returns something else than its
      kind does.
  """
  _check_of_plugin(ESTIMATORS, loss.estimator, _check_estimator)
  _check_of_plugin(ADVANTAGES, batch.advantage, _check_advantage)
  _check_of_plugin(AGGREGATIONS, batch.aggregation, _check_aggregation)
  jax.eval_shape(functools.partial(vocabulary.support, **loss.rules), _array(SHAPE))
  for name, entry in LOSS_TERMS.parts(loss.term.name).items() if loss.term is not None else ():
    function = getattr(entry, "loss", entry.function)
    if not getattr(function, "__module__", "jaxrl_llm.").startswith("jaxrl_llm."):
      with LOSS_TERMS.blamed(name):
        _check_term(loss, entry)


def _check_of_plugin(table: Table, section: Choice, check: Callable) -> None:
  """Calls `check(section)` if the chosen method is no module's of the package."""
  if table[section.name].of_plugin:
    with table.blamed(section.name):
      check(section)


def _check_estimator(cfg: EstimatorConfig) -> None:
  entry, numbers = ESTIMATORS[cfg.name], ESTIMATORS.numbers(cfg)
  tokens, mask = _array(SHAPE), _array(SHAPE, bool)
  arguments = jax.eval_shape(functools.partial(estimators.stand_ins, cfg), tokens, mask)
  if entry.prepare is not None:
    arguments["weights"] = jax.eval_shape(_bound(entry.prepare, cfg), tokens, tokens, tokens,
                                          mask, **arguments)
    _expect_tokens(arguments["weights"], "weights of `prepare`")
  output = jax.eval_shape(_bound(entry.function, numbers), tokens, tokens, tokens, mask,
                          **arguments)
  if not isinstance(output, EstimatorOutput):
    raise TypeError(f"it returned {_kind(output)}; an EstimatorOutput was expected "
                    "(estimators.common.output makes one)")
  _expect_tokens(output.per_token_loss, "per_token_loss")
  for name, metric in output.metrics.items():
    if not isinstance(metric, (Mean, Histogram, Extreme, EffectiveShare)):
      raise TypeError(f"metric {name!r} is {_kind(metric)}; a Mean, Histogram or Extreme was "
                      "expected")


def _check_aggregation(cfg: AggregationConfig) -> None:
  def weights(mask, signal, group):
    return (loss_weights(mask, signal, group, cfg), regularizer_weights(mask, cfg))

  for token_weights in jax.eval_shape(weights, _array(SHAPE, bool), _array(SHAPE),
                              _array(SHAPE[:1], jnp.int32)):
    _expect_tokens(token_weights, "weights")


def _bound(function, cfg):
  """Returns the function with `cfg` after its four arrays; `cfg` is static."""
  def call(log_probs, anchor_log_probs, signal, mask, **weights):
    return function(log_probs, anchor_log_probs, signal, mask, cfg, **weights)

  return call


def _check_advantage(cfg: AdvantageConfig) -> None:
  per_row, tokens, ints = _array(SHAPE[:1]), _array(SHAPE), _array(SHAPE, jnp.int32)
  needs = advantages.needs(cfg)
  optional = {name: tokens for name in needs if name in advantages.OPTIONAL}
  columns = {name: tokens for name in needs - set(optional)}
  for name, of_rows in (("keep", _array(SHAPE[:1], bool)), ("turn_id", ints),
                        ("reward_parts", _array((SHAPE[0], 2)))):
    if name in optional:
      optional[name] = of_rows
  inputs = AdvantageInputs(per_row, _array(SHAPE, bool), ints, _array(SHAPE[:1], jnp.int32),
                           **optional, columns=columns or None)
  entry, numbers = ADVANTAGES[cfg.name], ADVANTAGES.numbers(cfg)

  def call(inputs):
    return entry.function(inputs, numbers)

  _expect_tokens(jax.eval_shape(call, inputs), "advantages")


def _check_term(cfg: LossConfig, entry: terms.TermEntry) -> None:
  """Traces a loss term on a batch with the statistics and columns that it asks for."""
  tokens, mask = _array(SHAPE), _array(SHAPE, bool)
  numbers = LOSS_TERMS.numbers(cfg.term)

  def term(ints, rows, tokens, mask):
    stats = TokenStats(tokens, **{name: tokens for name in entry.stats})
    rollout = Rollout(ints, mask, rows, rows, tokens, mask[:, 0], rows, ints, rows, rows)
    columns = {name: tokens for name in entry.columns}
    columns |= {name: tokens[:, 0] for name in entry.row_columns}
    batch = TrainBatch(rollout, tokens, tokens, tokens, tokens, columns=columns or None)
    return entry.function(terms.TermInputs(stats, batch, mask, terms.surrogate_of(cfg)), numbers)

  ints, rows = _array(SHAPE, jnp.int32), _array(SHAPE[:1], jnp.int32)
  output = jax.eval_shape(term, ints, rows, tokens, mask)
  if not isinstance(output, terms.TermOutput):
    raise TypeError(f"it returned {_kind(output)}; a TermOutput was expected")
  _expect_tokens(output.per_token_loss, "per_token_loss")
  if output.coefficient is None and not hasattr(numbers, "coef"):
    raise TypeError("it returned no coefficient, and has no number coef")


def _expect_tokens(array, what: str) -> None:
  """Raises TypeError unless `found` is a floating [2, 3] array, as `what` is for 2 x 3 tokens."""
  shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
  if shape != SHAPE or not jnp.issubdtype(dtype, jnp.floating):
    description = _kind(array) if shape is None else f"{dtype}{list(shape)}"
    raise TypeError(f"{what} of 2 rows of 3 tokens: {description}; float32[2, 3] was expected")


def _array(shape: tuple[int, ...], dtype=jnp.float32) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, dtype)


def _kind(value) -> str:
  return "None" if value is None else f"a {type(value).__name__}"
