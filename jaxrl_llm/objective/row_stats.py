"""Statistics of the tokens of full rows under a model, each at the token that it is about."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl_llm.ops.bins import pack, places, unpack, weights
from jaxrl_llm.ops.token_stats import token_stats
from jaxrl_llm.types import Bins, TokenStats

AHEAD = 2  # columns before a token from which the module that looks ahead predicts it


@dataclasses.dataclass(frozen=True)
class Distribution:
  """The rules by which logits become the scored distribution, which must be the sampler's.

  Attributes:
    temperature: divides the logits.
    rules: values of rules by name, see ops/vocabulary.py; a missing rule is left out of the
      program.
    banned: (ids, [B, L] bool, True where none of the ids may be the token), as `stop_rule` returns
      them; None: every token is allowed everywhere.
  """

  temperature: float | Array = 1.0
  rules: dict = dataclasses.field(default_factory=dict)
  banned: tuple[tuple[int, ...], Bool[Array, "B L"]] | None = None


class _Fed(NamedTuple):
  """The inputs of the network and of `token_stats`, and the maps back to rows.

  Attributes:
    tokens, positions, segments, shared: [R, S], the network's; shared: None where no segment is.
    columns: [R, W], the columns that are scored, in this order; None: all.
    read: [R, S] bool, the columns whose statistics are read; None: all.
    banned: [R, S] bool, where ids are banned; None: nowhere.
    put: statistics of the scored columns -> [B, L].
    back: [R, S] -> [B, L].
    feed: [B, L] -> [R, S].
    ahead: the token that a column predicts is this many columns after it.
  """

  tokens: Int[Array, "R S"]
  positions: Int[Array, "R S"]
  segments: Int[Array, "R S"]
  shared: Int[Array, "R S"] | None
  columns: Int[Array, "R W"] | None
  read: Bool[Array, "R S"] | None
  banned: Bool[Array, "R S"] | None
  put: Callable[[Array], Array]
  back: Callable[[Array], Array]
  feed: Callable[[Array], Array]
  ahead: int = 1


def row_stats(params, tokens: Int[Array, "B L"], length: Int[Array, " B"], *, model,
              distribution: Distribution = Distribution(), stats: frozenset[str] = frozenset(),
              entropy_gradient: bool = False,
              completion: tuple[Int[Array, " B"], int] | None = None,
              bins: Bins | None = None,
              replayed: Int[Array, "B L N k"] | None = None) -> TokenStats:
  """Returns the TokenStats [B, L] of full rows under `params`.

  Entry 0 is 0 (False): no token precedes it.

  Args:
    tokens: [B, L], padded after `length`.
    length: [B], tokens in the row.
    model: see models/transformer.py.
    distribution: temperature and vocabulary.
    stats: names of ops/token_stats.py, `values` for the value head, `mtp_log_probs` for the head
      that predicts two tokens ahead, and `routing` for the experts of each token fed in. Routing
      is aligned with the tokens themselves, not with the tokens that they predict, and stays in
      the bins of packed rows.
    entropy_gradient: whether gradients flow through the entropy.
    completion: (prompt length [B], tokens that may follow). Only these columns are scored, the
      others are 0 (False): no logits are computed for prompts. None: all columns are scored.
    bins: how the rows are packed for the network; None: each is fed as it is. The statistics are
      the same up to rounding.
    replayed: `Rollout.routing`, the experts that the network takes; None: its own choice.

  Raises:
    ValueError: `mtp_log_probs` with rules that prune the vocabulary, or with rows that share their
      beginning.
  """
  banned_positions = None if distribution.banned is None else distribution.banned[1]
  feed = _padded if bins is None else functools.partial(_packed, bins=bins)
  fed = feed(tokens, length, completion, banned_positions)
  if bins is None:
    model = getattr(model, "of_single_segments", model)
  sharing = {} if fed.shared is None else {"shared": fed.shared}
  network = model.hidden
  if replayed is not None:
    from jaxrl_llm.ops.routing import fed as fed_routing
    sharing["replayed"] = fed_routing(replayed, fed.feed)
  if "routing" in stats or replayed is not None:
    network = model.hidden_and_routing
  hidden, _, *likely = network(params, fed.tokens, fed.positions, fed.segments, **sharing)
  stats_of_rows = functools.partial(_stats_of_rows,
                                    stats=stats - {"values", "routing", "mtp_log_probs"},
                                    entropy_gradient=entropy_gradient)
  out = _by_rows(model)(stats_of_rows,
                        *_scored_arrays(hidden, fed, model.head(params), distribution))
  out = jax.tree.map(fed.put, out)
  if "values" in stats:
    out = out.replace(values=fed.back(model.values(params, hidden)))
  out = jax.tree.map(_at_the_predicted_token, out)
  if "routing" in stats:
    out = out.replace(**_routing(likely[0], sharing.get("replayed")))
  if "mtp_log_probs" not in stats:
    return out
  _check_ahead(distribution, bins)
  far = feed(tokens, length, completion, banned_positions, ahead=AHEAD)
  return out.replace(mtp_log_probs=_log_probs_ahead(params, hidden, far, model, distribution))


def _routing(likely: Array, replayed: Array | None) -> dict:
  """Returns the fields of TokenStats on the experts [N, R, S, k]."""
  if replayed is None:
    return {"routing": likely}
  return {"routing": jnp.where(replayed >= 0, replayed, likely), "likely_routing": likely}


def _log_probs_ahead(params, hidden, far: _Fed, model, distribution: Distribution) -> Array:
  """Returns the log-probs [B, L] of the head that predicts two tokens ahead, at their tokens."""
  states, head = model.ahead(params, hidden, far.tokens, far.positions, far.segments)
  log_probs_of_rows = functools.partial(_stats_of_rows, stats=frozenset(), entropy_gradient=False)
  out = _by_rows(model)(log_probs_of_rows, *_scored_arrays(states, far, head, distribution))
  return _at_the_predicted_token(far.put(out.log_probs), far.ahead)


def predicted_ahead(mask: Bool[Array, "B L"]) -> Bool[Array, "B L"]:
  """Returns the tokens of `mask` that two tokens precede, which are all but a row's second."""
  return mask & (jnp.arange(mask.shape[1]) >= AHEAD)


def _check_ahead(distribution: Distribution, bins: Bins | None) -> None:
  if distribution.rules:
    raise ValueError(f"mtp_log_probs with {', '.join(distribution.rules)}: the kept tokens would "
                     "be those of another distribution than the policy's. Fix: no rule.")
  if bins is not None and bins.shared is not None:
    raise ValueError("mtp_log_probs with rows that share their beginning: its last token would "
                     "have to predict another token for each row. Fix: shared_prompts=False.")


def fed_tokens(length: Int[Array, " B"], width: int,
               bins: Bins | None) -> Bool[Array, "R S"] | Int[Array, "R S"]:
  """Returns how many rows each token of the network belongs to: 0 (False) at padding.

  `width` is L, the rest as `row_stats`.
  """
  if bins is None:
    return jnp.arange(width) < length[:, None]
  return weights(places(length, width, bins))


def _padded(tokens, length, completion, banned, ahead: int = 1) -> _Fed:
  """Returns each row as it is, with the padding after its end."""
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  segments = (positions < length[:, None]).astype(jnp.int32)
  columns = _predicting_columns(tokens.shape[1], completion, ahead)
  to_row_columns = functools.partial(_scatter_columns, columns=columns, length=tokens.shape[1])
  return _Fed(tokens, positions, segments, None, columns, None, banned,
              _itself if columns is None else to_row_columns, _itself, _itself, ahead)


def _packed(tokens, length, completion, banned, *, bins: Bins, ahead: int = 1) -> _Fed:
  """Packs the rows into bins: each is a separate segment, without the tokens shared with other
  rows.

  The columns that predict something come first where logits are computed. So the chunks of logits
  that are not read are the last ones, and are left out.
  """
  placement = places(length, tokens.shape[1], bins)
  to_bins = functools.partial(pack, where=placement)
  back = functools.partial(unpack, where=placement)
  column_index = jnp.arange(tokens.shape[1])
  predicting = column_index < length[:, None] - ahead
  if completion is not None:
    predicting &= column_index >= completion[0][:, None] - ahead
  read_mask = to_bins(predicting) & (placement.segments > 0)
  columns = jnp.argsort(~read_mask, axis=1, stable=True)
  inverse_order = jnp.argsort(columns, axis=1)

  def to_rows(x):
    x = jnp.take_along_axis(x, inverse_order, 1)
    return back(jnp.where(read_mask, x, jnp.zeros((), x.dtype)))

  return _Fed(to_bins(tokens), placement.positions, placement.segments, placement.shared, columns,
              read_mask, None if banned is None else to_bins(banned), to_rows, back, to_bins, ahead)


def _itself(x: Array) -> Array:
  return x


def _scored_arrays(hidden, fed: _Fed, head, distribution: Distribution) -> tuple[tuple, dict]:
  """Returns what `_stats_of_rows` reads: arrays with a row axis first, and arrays shared by all
  rows.
  """
  ids = () if distribution.banned is None else distribution.banned[0]
  banned = None if fed.banned is None else _next_column(fed.banned, fed.ahead)
  rows = tuple(None if x is None else _gather_columns(x, fed.columns) for x in (
      hidden, _next_column(fed.tokens, fed.ahead), banned, fed.read))
  forbidden = None if banned is None else jnp.isin(jnp.arange(head.shape[1]), jnp.asarray(ids))
  return rows, {"head": head, "temperature": jnp.asarray(distribution.temperature),
                "forbidden": forbidden, "rules": dict(distribution.rules)}


def _stats_of_rows(rows: tuple, shared_inputs: dict, *, stats: frozenset[str],
                   entropy_gradient: bool) -> TokenStats:
  """Returns the TokenStats of the rows of a device."""
  hidden, targets, banned_positions, read_mask = rows
  banned = None if banned_positions is None else (shared_inputs["forbidden"], banned_positions)
  return token_stats(hidden, shared_inputs["head"], targets,
                     temperature=shared_inputs["temperature"],
                     banned=banned, stats=stats, entropy_gradient=entropy_gradient,
                     read=read_mask, **shared_inputs["rules"])


def _by_rows(model) -> Callable:
  """Returns the layout's `by_rows`; a model without a layout has its rows on one device."""
  return getattr(getattr(model, "constrain", None), "by_rows",
                 lambda function, rows, shared_inputs: function(rows, shared_inputs))


def _next_column(x: Array, ahead: int) -> Array:
  """Returns x[:, t + ahead] in column t.

  The last columns predict nothing and get the first ones' entries. Dropping them would make the
  length odd, which costs more than computing them.
  """
  return jnp.roll(x, -ahead, 1)


def _at_the_predicted_token(x: Array, ahead: int = 1) -> Array:
  """Moves statistics [B, L] from the column that predicts a token to the token's own column."""
  return jnp.pad(x[:, :-ahead], ((0, 0), (ahead, 0)))


def _predicting_columns(length: int, completion: tuple[Int[Array, " B"], int] | None, ahead: int
                        ) -> Int[Array, "B W"] | None:
  """Returns the columns that predict completion tokens; None where these are all columns."""
  if completion is None or completion[1] >= length:
    return None
  prompt, width = completion
  # Rows without room for `width` tokens repeat the last column, which predicts nothing.
  columns = jnp.minimum(prompt[:, None] - ahead + jnp.arange(width), length - 1)
  # After a prompt of one token, nothing predicts the first token two ahead.
  return columns if ahead == 1 else jnp.maximum(columns, 0)


def _gather_columns(x: Array, columns: Int[Array, "B W"] | None) -> Array:
  """Returns the given columns of each row, [B, W, ...]; all of them for None."""
  if columns is None:
    return x
  return jnp.take_along_axis(x, columns.reshape(*columns.shape, *(1,) * (x.ndim - 2)), axis=1)


def _scatter_columns(x: Array, columns: Int[Array, "B W"], length: int) -> Array:
  """Returns [B, length] with the entries of x in the given columns, and 0 elsewhere."""

  def put_row(row, targets):
    return jnp.zeros(length, x.dtype).at[targets].set(row)

  return jax.vmap(put_row)(x, columns)
