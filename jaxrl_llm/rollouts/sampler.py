"""Sampling inside one compiled program: prefill once per prompt, then a decode loop that ends with
the last row.

The noise of a token is a function of (key, row_id, position) alone, so that a row's tokens do not
depend on the other rows, on their order or on the number of devices.
"""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.models import kv_cache
from jaxrl_llm.rollouts.drawing import draw, row_keys
from jaxrl_llm.types import STOP_LENGTH, STOP_TOKEN, PromptBatch, Rollout, Sampling


@struct.dataclass
class _Decode:
  """Loop state: `step` tokens of each row are drawn; column n of tokens and log_probs is the n-th
  new token.
  """

  cache: kv_cache.KVCache
  step: Int[Array, ""]
  tokens: Int[Array, "B N"]
  log_probs: Float[Array, "B N"]
  count: Int[Array, " B"]
  done: Bool[Array, " B"]


def generate(params, prompts: PromptBatch, key: Array, sampling: Sampling, *, model,
             cfg: SamplerConfig) -> Rollout:
  """Sample completions. The key is consumed.

  Args:
    params: of `model`.
    prompts: [B, P] with each prompt on `cfg.group_size` contiguous rows; only the first of them is
      prefilled.
    key: a row's noise is fold_in(fold_in(key, row_id), position).
    sampling: traced; temperature 0 is greedy. Tokens are drawn from what its rules keep,
      renormalised.
    cfg: static sizes and stop ids. Before `min_new_tokens` tokens of a completion, stop tokens have
      probability 0 and the others are renormalised, before the rules of `sampling` apply.

  Returns:
    Rollout with L = P + max_new_tokens. `behavior_log_probs` are those of the distribution drawn
    from; greedy draws have log-probability 0. `policy_step` is 0: the caller knows the step.
  """
  keys = row_keys(key, prompts.row_id)
  head = model.head(params)
  hidden, cache = _prefill(params, prompts, model, cfg.group_size)
  rows, width = prompts.tokens.shape
  state = _Decode(cache, jnp.int32(0), jnp.full((rows, cfg.max_new_tokens), cfg.pad_id, jnp.int32),
                  jnp.zeros((rows, cfg.max_new_tokens), jnp.float32), jnp.zeros(rows, jnp.int32),
                  jnp.zeros(rows, bool))
  banned = _banned(rows, head.shape[1], cfg)
  state = _enter(state,
                 *draw(hidden, head, keys, prompts.prompt_length, sampling, banned(state.step)),
                 cfg)

  def step(state: _Decode) -> _Decode:
    last = lax.dynamic_slice_in_dim(state.tokens, state.step - 1, 1, axis=1)
    position = prompts.prompt_length + state.step - 1
    hidden, cache = model.hidden(params, last, position[:, None], jnp.ones_like(last),
                                 cache=state.cache)
    token, log_prob = draw(hidden[:, 0], head, keys, position + 1, sampling, banned(state.step))
    return _enter(state.replace(cache=cache), token, log_prob, cfg)

  for slots in range(cfg.window, cfg.max_new_tokens + cfg.window, cfg.window):
    slots = min(slots, cfg.max_new_tokens)
    state = state.replace(cache=kv_cache.grow(state.cache, width + slots))
    # Drawing token n reads slot n - 1 of the completion, so a cache of `slots` slots serves the
    # draws up to n = slots.
    last_draw = min(slots + 1, cfg.max_new_tokens)
    state = lax.while_loop(lambda s, end=last_draw: (s.step < end) & ~jnp.all(s.done), step, state)
  return _assemble(prompts, state, cfg)


def _prefill(params, prompts: PromptBatch, model, group: int):
  """(hidden state that predicts the first new token [B, D], cache of the prompts for all rows)."""
  tokens, length = prompts.tokens[::group], prompts.prompt_length[::group]
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  segments = (positions < length[:, None]).astype(jnp.int32)
  cache = kv_cache.empty(model.config, *tokens.shape)
  hidden, cache = model.hidden(params, tokens, positions, segments, cache=cache)
  last = jnp.take_along_axis(hidden, (length - 1)[:, None, None], axis=1)[:, 0]
  return jnp.repeat(last, group, axis=0), kv_cache.repeat_rows(cache, group,
                                                               stacked=model.config.scan_layers)


def _banned(rows: int, width: int, cfg: SamplerConfig):
  """Tokens drawn so far -> the tokens [B, V] that may not be next, or None: any may, without a
  cost.
  """
  if not cfg.min_new_tokens:
    return lambda step: None
  stops = jnp.isin(jnp.arange(width), jnp.asarray(cfg.stop_ids, jnp.int32))
  return lambda step: jnp.broadcast_to(stops & (step < cfg.min_new_tokens), (rows, width))


def _enter(state: _Decode, token, log_prob, cfg: SamplerConfig) -> _Decode:
  """Write the drawn tokens of unfinished rows; a stop token is written, and ends its row."""
  live = ~state.done
  token = jnp.where(live, token, cfg.pad_id)
  put = lambda old, new: lax.dynamic_update_slice(old, new[:, None].astype(old.dtype),
                                                  (0, state.step))
  stop = jnp.isin(token, jnp.asarray(cfg.stop_ids, jnp.int32))
  return state.replace(step=state.step + 1, tokens=put(state.tokens, token),
                       log_probs=put(state.log_probs, jnp.where(live, log_prob, 0.0)),
                       count=state.count + live, done=state.done | stop)


def _assemble(prompts: PromptBatch, state: _Decode, cfg: SamplerConfig) -> Rollout:
  """Rows with prompt and completion contiguous."""
  rows, width = prompts.tokens.shape
  new = jnp.arange(width + cfg.max_new_tokens) - prompts.prompt_length[:, None]
  mask = (new >= 0) & (new < state.count[:, None])
  completion = lambda x: jnp.take_along_axis(x, jnp.clip(new, 0, cfg.max_new_tokens - 1), axis=1)
  prompt = jnp.pad(prompts.tokens, ((0, 0), (0, cfg.max_new_tokens)))
  tokens = jnp.where(new < 0, prompt, jnp.where(mask, completion(state.tokens), cfg.pad_id))
  truncated = ~state.done
  return Rollout(
      tokens=tokens.astype(jnp.int32), mask=mask, length=prompts.prompt_length + state.count,
      prompt_length=prompts.prompt_length,
      behavior_log_probs=jnp.where(mask, completion(state.log_probs), 0.0), truncated=truncated,
      stop_reason=jnp.where(truncated, STOP_LENGTH, STOP_TOKEN).astype(jnp.int32),
      policy_step=jnp.zeros(rows, jnp.int32), row_id=prompts.row_id, group_id=prompts.group_id)
