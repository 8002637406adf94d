"""The sampler's programs: one whole generation, or the engine's with `rollout.slots`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl_llm import parallel
from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.models import Model, kv_cache
from jaxrl_llm.planning import model_flops
from jaxrl_llm.planning.abstract import PAD_ID, STOP_IDS, Planned, bytes_of, placed
from jaxrl_llm.planning.analysis import Program
from jaxrl_llm.rollouts import decoding, engine, generate, numerics, sizes
from jaxrl_llm.rollouts.chunk import ChunkInputs
from jaxrl_llm.types import PromptBatch


def sampler_programs(planned: Planned, held: int) -> list[Program]:
  """Returns the programs that sample a rollout.

  Args:
    held: bytes of one device that the run holds meanwhile, beside the parameters that sample.
  """
  cfg, apart = planned.cfg, planned.rollout_mesh is not planned.learner.mesh
  model = numerics.rollout_model(planned.learner.model, cfg.rollout)
  params, mesh = planned.params, planned.rollout_mesh
  if apart:
    model = dataclasses.replace(model, constrain=parallel.Layout(mesh))
    params = jax.tree.map(functools.partial(_copied, mesh), params)
    held = 0
  make = _engine if cfg.rollout.slots else _generation
  return make(planned, model, params, held)


def _copied(mesh, x):
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=parallel.replicated(mesh))


def _generation(planned: Planned, model: Model, params, held: int) -> list[Program]:
  cfg, mesh = planned.cfg, planned.rollout_mesh
  r, prompts = cfg.rollout, _by_rows(planned.prompts, mesh)
  own = SamplerConfig(r.group_size, r.max_new_tokens, r.window, STOP_IDS, PAD_ID,
                      min_new_tokens=r.min_new_tokens)
  program = jax.jit(functools.partial(generate, model=model, cfg=own),
                    out_shardings=parallel.rows(mesh))
  ends = [min(k * r.window + 1, r.max_new_tokens)
          for k in range(1, -(-r.max_new_tokens // r.window) + 1)]
  needs = (model_flops.prefill(cfg, r.prompts) + model_flops.decode(cfg, cfg.rows))
  rows = cfg.rows // sizes.shards(mesh)
  cache = model_flops.cache_bytes(cfg, rows, cfg.row_length,
                                  kv_cache.dtype(model.config).itemsize)
  return [Program(
      "generate", functools.partial(program.trace, params, prompts, planned.key, planned.sampling),
      {"parameters": params, "optimizer": (), "cache": (), "batch": prompts}, mesh.size, 1,
      tuple(b - a for a, b in zip([1, *ends], ends, strict=False)), needs, held, cache,
      _prunes(planned), cfg.model.vocab_size)]


def _engine(planned: Planned, model: Model, params, held: int) -> list[Program]:
  """Prefill of a wave of prompts, and a chunk of steps of the largest batch and ring."""
  cfg, mesh = planned.cfg, planned.rollout_mesh
  r, shards = cfg.rollout, sizes.shards(mesh)
  own = engine.EngineConfig(r.group_size, r.max_new_tokens, r.window, STOP_IDS, PAD_ID,
                            r.min_new_tokens, slots=r.slots, chunk=min(r.chunk, r.max_new_tokens),
                            compact=r.compaction)
  slots = sizes.batch_sizes(own, cfg.rows, shards)[0]
  ring = sizes.ring_sizes(own, cfg.rows, r.max_turns)[-1]
  built = decoding.build(model, own.chunk, STOP_IDS, r.min_new_tokens > 0, mesh)
  groups = min(-(-slots // r.group_size), cfg.rows // r.group_size)
  waves = -(-cfg.rows // (groups * r.group_size))
  chunks = -(-cfg.rows // slots) * -(-r.max_new_tokens // own.chunk)

  whole = functools.partial(_whole, mesh)
  tokens, length = whole((groups, r.max_prompt_tokens)), whole((groups,))
  params = _decode_params(model, params, mesh)
  cache = _cache(model, slots, r.max_prompt_tokens + ring, mesh)
  inputs = _inputs(whole, slots, own.chunk if r.max_turns else 0)

  program = functools.partial(Program, devices=mesh.size, pruned=_prunes(planned),
                              vocab_size=cfg.model.vocab_size, cache_inside=0)
  prefill_cache = model_flops.cache_bytes(cfg, groups // shards, r.max_prompt_tokens,
                                          kv_cache.dtype(model.config).itemsize)
  return [
      program("prefill", functools.partial(built.prefill.trace, params, tokens, length),
              {"parameters": params, "optimizer": (), "cache": (), "batch": (tokens, length)},
              runs=waves, trips=(), model_flops=model_flops.prefill(cfg, groups),
              held=held + bytes_of(cache)),
      program("decode", functools.partial(built.decode.trace, params, cache, None, inputs,
                                          planned.key, planned.sampling),
              {"parameters": params, "optimizer": (), "cache": cache, "batch": inputs},
              runs=chunks, trips=(own.chunk,),
              model_flops=model_flops.decode(cfg, slots, own.chunk), held=held + prefill_cache),
  ]


def _decode_params(model: Model, params, mesh):
  """The parameters that the engine's chunks read, laid out as the trainer's."""
  shapes = jax.eval_shape(lambda tree: decoding.for_decoding(tree, model)[1], params)
  separate = decoding.decode_model(model)
  return placed(shapes, parallel.param_shardings(separate, mesh))


def _cache(model: Model, rows: int, columns: int, mesh):
  """The engine's cache, rows over the devices."""
  separate = decoding.decode_model(model)
  shapes = jax.eval_shape(functools.partial(kv_cache.empty, separate.config, rows, columns))

  def lay(x):
    sharding = parallel.rows(mesh) if x.ndim else parallel.replicated(mesh)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(lay, shapes)


def _inputs(whole, slots: int, given: int) -> ChunkInputs:
  """Inputs of a chunk; `given` columns of tokens that are not sampled, 0 without turns."""
  turns = {"given": whole((slots, given)), "pending": whole((slots,))} if given else {}
  return ChunkInputs(*[whole(()) for _ in range(3)], *[whole((slots,)) for _ in range(5)], **turns)


def _whole(mesh, shape: tuple[int, ...]):
  return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=parallel.replicated(mesh))


def _by_rows(prompts: PromptBatch, mesh) -> PromptBatch:
  layout = parallel.rows(mesh)
  return placed(prompts, jax.tree.map(lambda _: layout, prompts))


def _prunes(planned: Planned) -> bool:
  """Whether the sampler's conditionals take the branch that sorts the vocabulary."""
  cfg = planned.cfg
  rules = cfg.vocabulary.rules if cfg.vocabulary.side in ("both", "sampler") else {}
  return bool(rules) or cfg.rollout.logit_noise > 0
