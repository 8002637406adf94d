"""Generation in one compiled program: prefill once per prompt, then a decode loop that ends with
the last row.

The noise of a token is a function of (key, row_id, position) only, so the tokens of a row do not
depend on the other rows, on their order or on the number of devices.
"""

import functools

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.models import kv_cache
from jaxrl_llm.rollouts.assembly import Completions, assemble
from jaxrl_llm.rollouts.next_token import row_keys, sample_token
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, PromptBatch, Rollout, Sampling


@struct.dataclass
class _Loop:
  """State after `step` tokens of each row; column n holds the n-th completion token."""

  cache: kv_cache.KVCache
  step: Int[Array, ""]
  tokens: Int[Array, "B N"]
  log_probs: Float[Array, "B N"]
  count: Int[Array, " B"]
  done: Bool[Array, " B"]
  routing: Int[Array, "B L N k"] | None


def generate(params, prompts: PromptBatch, key: Array, sampling: Sampling, *, model,
             cfg: SamplerConfig, rules: frozenset[str] | None = None) -> Rollout:
  """Samples completions. The key is consumed.

  Args:
    params: of `model`.
    prompts: [B, P] with each prompt on `cfg.group_size` contiguous rows; only the first of them is
      prefilled.
    key: the noise of a row comes from fold_in(fold_in(key, row_id), position).
    sampling: traced; temperature 0 is greedy. Its rules prune the distribution, which is then
      renormalised.
    cfg: static. Before `min_new_tokens` tokens of a completion, stop tokens have probability 0; the
      other tokens are renormalised before the rules of `sampling` apply.
    rules: static, the rules of `sampling` that may be on, as in `next_token.sample_token`.

  Returns:
    Rollout with L = P + max_new_tokens. `behavior_log_probs` are of the distribution that was
    sampled from; they are 0 at temperature 0. `policy_step` is 0, because only the caller knows it.
  """
  keys, head = row_keys(key, prompts.row_id), model.head(params)
  feed = model.hidden_and_routing if cfg.routing else model.hidden
  hidden, cache, *used = prefill(params, prompts, model, cfg.group_size, feed)
  (rows, width), windows = prompts.tokens.shape, kv_cache.windows(model.config)
  record = None
  if cfg.routing:
    from jaxrl_llm.ops import routing
    record = routing.started(used[0], prompts.prompt_length[::cfg.group_size], cfg.group_size,
                             cfg.max_new_tokens, at_end=bool(model.config.window))
  loop = _Loop(cache, jnp.int32(0), jnp.full((rows, cfg.max_new_tokens), cfg.pad_id, jnp.int32),
               jnp.zeros((rows, cfg.max_new_tokens), jnp.float32), jnp.zeros(rows, jnp.int32),
               jnp.zeros(rows, bool), record)

  stops = jnp.isin(jnp.arange(head.shape[1]), jnp.asarray(cfg.stop_ids, jnp.int32))

  def sample(loop: _Loop, hidden, position) -> _Loop:
    forbidden = None  # costs nothing
    if cfg.min_new_tokens:
      forbidden = jnp.broadcast_to(stops & (loop.step < cfg.min_new_tokens), (rows, len(stops)))
    token, log_prob = sample_token(hidden, head, (keys, position), sampling, forbidden, rules=rules)
    return _append(loop, token, log_prob, cfg)

  def step(loop: _Loop) -> _Loop:
    last = lax.dynamic_slice_in_dim(loop.tokens, loop.step - 1, 1, axis=1)
    position = prompts.prompt_length + loop.step - 1
    hidden, cache, *used = feed(params, last, position[:, None], jnp.ones_like(last),
                                cache=loop.cache)
    if cfg.routing:
      loop = loop.replace(routing=routing.entered(loop.routing, used[0], width + loop.step - 1))
    return sample(loop.replace(cache=cache), hidden[:, 0], position + 1)

  loop = sample(loop, hidden, prompts.prompt_length)
  for columns in range(cfg.window, cfg.max_new_tokens + cfg.window, cfg.window):
    columns = min(columns, cfg.max_new_tokens)
    loop = loop.replace(cache=kv_cache.grow(loop.cache, width + columns, windows))
    # Sampling token n reads column n - 1 of the completion, so a cache of `columns` columns serves
    # up to n = columns.
    end = min(columns + 1, cfg.max_new_tokens)
    loop = lax.while_loop(functools.partial(_unfinished, end), step, loop)
  reason = jnp.where(loop.done, STOP_TOKEN, STOP_LENGTH)
  completions = Completions(loop.tokens, loop.log_probs, loop.count, reason)
  rollout = assemble(prompts, completions, pad_id=cfg.pad_id)
  if cfg.routing:
    rollout = rollout.replace(routing=routing.of_rows(loop.routing, prompts.prompt_length,
                                                      loop.count, width))
  return rollout


def prefill(params, prompts: PromptBatch, model, group: int, feed=None):
  """Reads the prompts: each once, then repeated for the `group` rows that begin with it.

  Where layers have a window, prompts end at the last slot, so that each row's last slots are those
  that its next token sees.

  Returns:
    (hidden state [B, D] that predicts the first completion token, the prompts' cache, and what else
    `feed` returns, None being `Model.hidden`).
  """
  tokens, length = prompts.tokens[::group], prompts.prompt_length[::group]
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  last = length - 1
  if model.config.window:
    positions = positions - (tokens.shape[1] - length)[:, None]
    tokens = jnp.take_along_axis(tokens, jnp.maximum(positions, 0), axis=1)
    last = jnp.full_like(length, tokens.shape[1] - 1)
  segments = ((positions >= 0) & (positions < length[:, None])).astype(jnp.int32)
  cache = kv_cache.empty(model.config, *tokens.shape)
  hidden, cache, *used = (feed or model.hidden)(params, tokens, positions, segments, cache=cache)
  hidden = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
  cache = kv_cache.repeat_rows(cache, group, stacked=model.config.scan_layers)
  return jnp.repeat(hidden, group, axis=0), cache, *used


def _unfinished(end: int, loop: _Loop):
  return (loop.step < end) & ~jnp.all(loop.done)


def _append(loop: _Loop, token, log_prob, cfg: SamplerConfig) -> _Loop:
  """Writes the sampled tokens of unfinished rows; a stop token is written, and ends its row."""
  live = ~loop.done
  token = jnp.where(live, token, cfg.pad_id)

  def put(old, new):
    return lax.dynamic_update_slice(old, new[:, None].astype(old.dtype), (0, loop.step))

  stop = jnp.isin(token, jnp.asarray(cfg.stop_ids, jnp.int32))
  return loop.replace(step=loop.step + 1, tokens=put(loop.tokens, token),
                      log_probs=put(loop.log_probs, jnp.where(live, log_prob, 0.0)),
                      count=loop.count + live, done=loop.done | stop)
