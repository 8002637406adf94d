"""What a network of ours computes from a checkpoint, against what transformers computes.

Errors are the largest difference over the largest value, of arrays as a whole.
"""

import copy
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.families import checkpoints
from jaxrl_llm.config import ParametersConfig, SamplerConfig
from jaxrl_llm.models import load_pretrained, save_pretrained, trainable
from jaxrl_llm.models.hf.tensor_names import by_path, tensor_table
from jaxrl_llm.rollouts import engine, generate
from jaxrl_llm.rollouts.engine import EngineConfig
from jaxrl_llm.types import PromptBatch, Rollout, Sampling

LENGTH, NEW = 40, 30
PROMPT, END = 12, 20  # tokens of `packed_rows`
# Prompts of different lengths, for greedy continuations.
PROMPTS = [[3, 14, 15, 9, 26, 5], [35], [8, 9, 7, 9, 32, 38, 46, 26, 43]]
STOP = 3


@functools.cache
def ids(rows: int = 3, length: int = LENGTH) -> np.ndarray:
  """Returns random tokens [rows, length]."""
  return np.random.default_rng(1).integers(0, checkpoints.VOCAB, (rows, length))


def relative_error(values, expected) -> float:
  """Returns the largest difference, relative to the largest expected value."""
  values, expected = np.asarray(values), np.asarray(expected)
  return float(np.abs(values - expected).max() / np.abs(expected).max())


def log_probs(model, params, tokens, positions=None, segments=None, shared=None):
  """Returns [R, S, V] of the next token; the other arguments as in `Model.hidden`."""
  if positions is None:
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
  segments = np.ones_like(tokens) if segments is None else segments
  hidden, _ = model.hidden(params, tokens, positions, segments, shared=shared)
  return jax.nn.log_softmax(hidden @ model.head(params).astype(jnp.float32))


def their_log_probs(network, tokens) -> np.ndarray:
  """Returns [R, S, V] of the next token, by transformers."""
  return np.asarray(jax.nn.log_softmax(checkpoints.logits(network, tokens)))


def logits_error(checkpoint: checkpoints.Checkpoint) -> float:
  """Returns the error of all log-probs of full rows."""
  model, params, _ = load_pretrained(checkpoint.directory)
  return relative_error(log_probs(model, params, ids()), their_log_probs(checkpoint.network, ids()))


def their_gradients(network, tokens) -> tuple[float, dict[str, np.ndarray]]:
  """Returns (mean loss of the next token, gradients by the name of the checkpoint's tensor), by
  transformers, in the network's dtype.
  """
  import torch

  inputs = torch.tensor(tokens)
  network.zero_grad()
  loss = network(inputs, labels=inputs).loss
  loss.backward()
  gradients = {name: p.grad.numpy().copy() for name, p in network.named_parameters()}
  return loss.item(), {name: x for pair in gradients.items() for name, x in stored_tensors(*pair)}


def stored_tensors(name: str, x: np.ndarray) -> list[tuple[str, np.ndarray]]:
  """Returns (name, array) of the tensors that a checkpoint has for a parameter of transformers,
  which joins the matrices of experts.
  """
  stem, _, kind = name.rpartition(".experts.")
  if not stem:
    return [(name, x)]
  kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
  return [(f"{stem}.experts.{i}.{kind}.weight", matrix) for i, expert in enumerate(x)
          for kind, matrix in zip(kinds, np.split(expert, len(kinds)), strict=True)]


def gradient_errors(checkpoint: checkpoints.Checkpoint) -> dict[str, tuple[float, float]]:
  """Returns by tensor the error of our gradient in f32, and of transformers' in f32, both against
  transformers' in f64; `loss` is that of the loss.
  """
  model, params, _ = load_pretrained(checkpoint.directory)

  @jax.jit
  def loss(params):
    of_next = log_probs(model, params, ids())[:, :-1]
    return -jnp.mean(jnp.take_along_axis(of_next, ids()[:, 1:, None], -1))

  value, gradients = jax.value_and_grad(loss)(params)
  rounded_value, rounded = their_gradients(checkpoint.network, ids())
  wide = copy.deepcopy(checkpoint.network).double()
  wide.set_experts_implementation("eager")  # the others multiply experts in f32 at most
  exact_value, exact = their_gradients(wide, ids())
  errors = {"loss": (relative_error(value, exact_value), relative_error(rounded_value,
                                                                        exact_value))}
  by_parameter = by_path(gradients)
  for entry in tensor_table(model):
    for index, tensor in entry.names:
      ours = entry.to_stored(np.asarray(by_parameter[entry.path][index]))
      errors[tensor] = (relative_error(ours, exact[tensor]),
                        relative_error(rounded[tensor], exact[tensor]))
  assert len(errors) == len(exact) + 1, "a tensor has no gradient"
  return errors


def greedy_mismatches(checkpoint: checkpoints.Checkpoint, count: int) -> int:
  """Returns how many tokens differ of greedy continuations of PROMPTS in one padded batch, through
  prefill, cache and decode loop.
  """
  model, params, _ = load_pretrained(checkpoint.directory)
  length = np.asarray([len(p) for p in PROMPTS])
  tokens = np.asarray([p + [0] * (max(length) - len(p)) for p in PROMPTS])
  rows = np.arange(len(PROMPTS))
  prompts = PromptBatch(*map(jnp.asarray, (tokens, length, rows, rows)))
  cfg = SamplerConfig(group_size=1, max_new_tokens=count, window=16, stop_ids=(), pad_id=0)
  run = jax.jit(functools.partial(generate, model=model, cfg=cfg))
  rollout = jax.device_get(run(params, prompts, jax.random.key(0), Sampling.of(0.0)))
  continued = [rollout.tokens[i, len(p):len(p) + count] for i, p in enumerate(PROMPTS)]
  expected = [checkpoints.greedy(checkpoint.network, p, count) for p in PROMPTS]
  return int(np.sum(np.asarray(continued) != np.asarray(expected)))


def group_prompts() -> PromptBatch:
  """Returns 4 prompts of 1 to 17 tokens, each of 2 rows."""
  length = np.repeat([17, 1, 9, 5], 2)
  tokens = np.repeat(ids(4, 17), 2, 0)
  tokens = np.where(np.arange(17) < length[:, None], tokens, 0)
  rows = np.arange(8)
  return PromptBatch(*(x.astype(np.int32) for x in (tokens, length, rows, rows // 2)))


def sampled(model, params) -> Rollout:
  """Returns completions of `group_prompts`, by the sampler that keeps its batch."""
  cfg = SamplerConfig(group_size=2, max_new_tokens=NEW, window=16, stop_ids=(STOP,), pad_id=0)
  run = jax.jit(functools.partial(generate, model=model, cfg=cfg))
  return jax.device_get(run(params, group_prompts(), jax.random.key(3), Sampling.of(1.0)))


def engine_sampled(model, params, **options) -> Rollout:
  """Returns completions of `group_prompts`, by the engine: 4 rows at a time, chunks of 8 steps."""
  cfg = EngineConfig(**{"group_size": 2, "max_new_tokens": NEW, "window": 32, "stop_ids": (STOP,),
                        "pad_id": 0, "slots": 4, "chunk": 8, "compact": 0} | options)
  rollout, _ = engine.run(params, group_prompts(), jax.random.key(3), Sampling.of(1.0),
                          model=model, cfg=cfg)
  return jax.device_get(rollout)


def sampled_error(rollout: Rollout, scored: np.ndarray) -> float:
  """Returns the error of the sampler's log-probs of its tokens.

  Args:
    scored: [B, L, V] log-probs of the next token by a full forward pass over the same rows.
  """
  columns = np.take_along_axis(scored[:, :-1], rollout.tokens[:, 1:, None], -1)[..., 0]
  mask = rollout.mask[:, 1:]
  assert mask.sum() > 100, "too few tokens show nothing"
  return relative_error(rollout.behavior_log_probs[:, 1:][mask], columns[mask])


def decode_error(checkpoint: checkpoints.Checkpoint) -> float:
  """Returns the error of ragged rows' log-probs as they are sampled, against transformers' full
  forward pass; of both samplers, and of the engine with shared prompts.
  """
  model, params, _ = load_pretrained(checkpoint.directory)
  rollouts = [sampled(model, params), engine_sampled(model, params),
              engine_sampled(model, params, shared_prefix=True)]
  return max(sampled_error(x, their_log_probs(checkpoint.network, x.tokens)) for x in rollouts)


def export_error(checkpoint: checkpoints.Checkpoint, directory: Path) -> float:
  """Returns the error of what transformers computes from our export of a checkpoint."""
  model, params, _ = load_pretrained(checkpoint.directory)
  save_pretrained(directory, model, params)
  exported = their_log_probs(checkpoints.reload(directory), ids())
  return relative_error(exported, their_log_probs(checkpoint.network, ids()))


def with_adapters(params):
  """Returns (trained leaves away from their start, frozen ones, their config) of adapters."""
  cfg = ParametersConfig("lora", lora_rank=2)
  trained, frozen = trainable.split(params, cfg, jax.random.key(0))
  trained = jax.tree.map(lambda x: x + 0.1 * jnp.cos(7.0 * jnp.arange(x.size).reshape(x.shape)),
                         trained)
  return trained, frozen, cfg


def adapters_error(checkpoint: checkpoints.Checkpoint, directory: Path) -> float:
  """Returns the error of a network with adapters, whose merged export transformers reads."""
  model, params, _ = load_pretrained(checkpoint.directory)
  merged = trainable.merge(*with_adapters(params))
  save_pretrained(directory, model, merged)
  expected = their_log_probs(checkpoints.reload(directory), ids())
  assert relative_error(expected, their_log_probs(checkpoint.network, ids())) > 1e-2, "no change"
  return relative_error(log_probs(model, merged, ids()), expected)


def packed_rows(tokens) -> tuple[np.ndarray, ...]:
  """Returns a row of two ends, of rows 1 and 2, after a prompt, of row 0, which both attend to.

  Returns:
    (tokens, positions, segments, shared) [1, PROMPT + 2 END].
  """
  lengths = PROMPT, END, END
  parts = [row[:length] for row, length in zip(tokens, lengths, strict=True)]
  positions = np.concatenate([np.arange(PROMPT), *[PROMPT + np.arange(END)] * 2])
  segments = np.repeat([1, 2, 3], lengths)
  return tuple(x[None].astype(np.int32) for x in (
      np.concatenate(parts), positions, segments, np.where(segments > 1, 1, -1)))


def packing_error(checkpoint: checkpoints.Checkpoint) -> float:
  """Returns the error of packed rows that share a prompt, against transformers on each alone."""
  model, params, _ = load_pretrained(checkpoint.directory)
  tokens, positions, segments, shared = packed_rows(ids())
  ours = np.asarray(log_probs(model, params, tokens, positions, segments, shared)[0])
  errors = []
  for segment in (2, 3):
    columns = segments[0] == segment
    row = np.concatenate([tokens[0, :PROMPT], tokens[0, columns]])[None]
    errors.append(relative_error(ours[columns],
                                 their_log_probs(checkpoint.network, row)[0, PROMPT:]))
  return max(errors)
