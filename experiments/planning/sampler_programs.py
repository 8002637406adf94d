"""The sampler's programs: the hand-over of parameters, and one full generation or, with
`rollout.slots`, the engine's.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp

from experiments.planning import lengths, model_flops
from experiments.planning.abstract import PAD_ID, STOP_IDS, Planned, by_rows, bytes_of, placed
from experiments.planning.analysis import Program, tracing
from jaxrl_llm import parallel
from jaxrl_llm.config import ModelConfig, SamplerConfig
from jaxrl_llm.models import Model, kv_cache, live_attention, row_cache
from jaxrl_llm.rollouts import (
  decode_attention,
  decoding,
  engine,
  generate,
  hand_over,
  numerics,
  sizes,
)
from jaxrl_llm.rollouts.chunk import ChunkInputs, Shared
from jaxrl_llm.rollouts.next_token import Draw


def sampler_programs(planned: Planned, resident: int, mean_length: float = 1.0) -> list[Program]:
  """Returns the programs that sample a rollout.

  Args:
    resident: bytes of one device that trains, of what the run holds meanwhile.
    mean_length: of completions, over their limit; an engine's slots take the next row.
  """
  separate = parallel.apart(planned.rollout_mesh, planned.learner.mesh)
  r = planned.sizes
  make = functools.partial(_engine, mean_length=mean_length) if r.slots else _generation
  sampling = _one_engine(planned) if r.slots and r.engine_per_device else planned
  programs = make(sampling, sampler_params(sampling), 0 if separate else resident)
  # Devices that only sample receive a plain copy, which is a transfer and no program.
  return programs if separate else [*_hand_over(planned, resident), *programs]


def _one_engine(planned: Planned) -> Planned:
  """Returns the same with the first of `engines.run`'s devices, and with its share of rows and
  slots.
  """
  meshes, r = parallel.per_engine(planned.rollout_mesh), planned.sizes
  rollout = dataclasses.replace(r, prompts=-(-r.prompts // len(meshes)),
                                slots=-(-r.slots // len(meshes)))
  return dataclasses.replace(planned, sizes=rollout, rollout_mesh=meshes[0])


def sampler_params(planned: Planned):
  """Returns the sampler's copy of the parameters."""
  model, mesh = _sampling_model(planned), planned.rollout_mesh
  shapes = jax.eval_shape(functools.partial(_for_decoding, planned), planned.params)
  layout = parallel.param_shardings(hand_over.decode_model(model), mesh, parallel.DECODING_RULES)
  return placed(shapes, layout)


def _sampling_model(planned: Planned) -> Model:
  model = numerics.rollout_model(planned.learner.model, planned.sizes)
  return dataclasses.replace(model, constrain=parallel.Layout(planned.rollout_mesh))


def _for_decoding(planned: Planned, params):
  """As `Sampler.prepare` computes it."""
  model, params = numerics.rollout_numerics(planned.learner.model, params, planned.sizes)
  return hand_over.for_decoding(params, model)[1]


def _hand_over(planned: Planned, resident: int) -> list[Program]:
  params = _rounded(planned)
  hand_over_parts = hand_over.make(_sampling_model(planned), planned.rollout_mesh)
  return [
      Program(f"hand_over_{part.name}", tracing(part.program, *part.arguments),
              _columns(part.arguments[0]), planned.rollout_mesh.size, runs=part.runs, trips=(),
              model_flops=0.0,
              held=resident - (bytes_of(part.arguments[0]) if params is planned.params else 0),
              cache_inside=0, head=planned.head)
      for part in hand_over_parts.parts(params)
  ]


def _rounded(planned: Planned):
  """Returns the parameters that are handed over: the trained ones, or in the rollout's numerics."""
  model, cfg = planned.learner.model, planned.sizes
  if not numerics.changes_params(model, cfg):
    return planned.params

  def rounded(params):
    return numerics.rollout_numerics(model, params, cfg)[1]

  layout = parallel.param_shardings(_sampling_model(planned), planned.learner.mesh)
  return placed(jax.eval_shape(rounded, planned.params), layout)


def _columns(params, cache=(), batch=()) -> dict:
  return {"parameters": params, "optimizer": (), "cache": cache, "batch": batch}


def _generation(planned: Planned, params, resident: int) -> list[Program]:
  r, mesh, model = planned.sizes, planned.rollout_mesh, _sampling_model(planned)
  shapes, prompts = planned.learner.model.config, by_rows(planned.prompts, mesh)
  sampler_cfg = SamplerConfig(r.group_size, r.max_new_tokens, r.window, STOP_IDS, PAD_ID,
                              min_new_tokens=r.min_new_tokens)
  program = jax.jit(functools.partial(generate, model=hand_over.decode_model(model),
                                      cfg=sampler_cfg),
                    static_argnames="rules", out_shardings=parallel.rows(mesh))
  ends = [1] + [min(k * r.window + 1, r.max_new_tokens)
                for k in range(1, -(-r.max_new_tokens // r.window) + 1)]
  cache = -(-r.rows // sizes.shards(mesh)) * r.row_length * kv_cache.column_bytes(model.config)
  return [Program(
      "generate",
      tracing(program, params, prompts, planned.key, planned.sampling, rules=planned.rules),
      _columns(params, batch=prompts), mesh.size, runs=1,
      trips=tuple(b - a for a, b in itertools.pairwise(ends)),
      model_flops=(model_flops.prefill(shapes, r.max_prompt_tokens, r.prompts) +
                   model_flops.decode(shapes, r, r.rows)),
      held=resident, cache_inside=cache // _head_shards(shapes.num_kv_heads, mesh),
      head=planned.head)]


def _head_shards(heads: int, mesh) -> int:
  """Returns the number of devices over which the heads of the cache are divided."""
  tensor = mesh.shape["tensor"]
  return tensor if heads % tensor == 0 else 1


def _engine(planned: Planned, params, resident: int, mean_length: float) -> list[Program]:
  """Returns the prefill of the longest prompts, their admission, and a chunk of steps of the
  largest batch and window.
  """
  r, mesh, model = planned.sizes, planned.rollout_mesh, _sampling_model(planned)
  shapes, shards = planned.learner.model.config, sizes.shards(mesh)
  side = decode_attention.heads_side_by_side(r.decode_attention, model, r.row_length, compare=False)
  attention = decode_attention.KERNEL if side else decode_attention.WINDOWED
  engine_cfg = engine.EngineConfig(r.group_size, r.max_new_tokens, r.window, STOP_IDS, PAD_ID,
                                   r.min_new_tokens, slots=r.slots,
                                   chunk=min(r.chunk, r.max_new_tokens),
                                   shared_prefix=r.shared_prefix, attention=attention)
  slots = sizes.batch_sizes(engine_cfg, r.rows, shards)[0]
  columns = sizes.columns(engine_cfg, r.max_prompt_tokens, kv_cache.dtype(model.config))
  built = decoding.build(model, engine_cfg.chunk, STOP_IDS, r.min_new_tokens > 0, mesh,
                         bool(side))
  wave, piece = sizes.prefill_groups(engine_cfg, r.rows, r.max_prompt_tokens, shards)
  waves, steps = -(-r.rows // (wave * r.group_size)), lengths.decode_steps(r, slots, mean_length)

  replicated = functools.partial(_replicated, mesh)
  prompts = replicated((piece, r.max_prompt_tokens)), replicated((piece,))
  cache, shared, admitting = _cache(model, slots, columns, mesh, side or 1), None, slots
  if r.shared_prefix:
    admitting = sizes.prompt_places(engine_cfg, r.rows)
    shared = Shared(_cache(model, admitting, r.max_prompt_tokens, mesh), replicated((admitting,)),
                    replicated((admitting, r.group_size)), replicated((slots,)),
                    replicated((slots,)))
  completions = lengths.in_flight(r.rows, mean_length) * r.max_new_tokens
  # `shared` has the prompts, once for a group
  live = (sizes.row_prompt(engine_cfg, r.max_prompt_tokens) + completions) / columns
  block = live_attention.block_of(columns, kv_cache.dtype(model.config))
  share = min(1.0, live + block / 2 / columns)  # half of a row's last block is dead in the mean
  inputs = _inputs(replicated, slots, engine_cfg.chunk if r.max_turns else 0,
                   sizes.windows(engine_cfg, r.max_prompt_tokens)[-1])
  program = functools.partial(Program, devices=mesh.size, cache_inside=0, head=planned.head)
  waiting = -(-wave // shards) * r.max_prompt_tokens * kv_cache.column_bytes(model.config)
  prefills = waves * -(-wave // piece)
  # Of the prompts to enter, each device has its share.
  prefilled = _cache(model, piece, r.max_prompt_tokens, mesh)
  into = cache if shared is None else shared.store
  return [
      program("prefill", tracing(built.prefill, params, *prompts),
              _columns(params, batch=prompts), runs=prefills, trips=(),
              model_flops=model_flops.prefill(shapes, r.max_prompt_tokens, piece),
              held=resident + bytes_of((cache, shared))),
      program("admit", tracing(built.admit, into, prefilled, replicated((admitting,)),
                               replicated((admitting,)), replicated(())),
              _columns((), into), runs=prefills, trips=(), model_flops=0.0,
              held=resident + bytes_of(params) + (0 if shared is None else bytes_of(cache))),
      program("decode",
              tracing(built.decode, params, cache, shared, inputs,
                      Draw(planned.key, planned.sampling), rules=planned.rules),
              _columns(params, (cache, shared), inputs),
              runs=-(-steps // engine_cfg.chunk), trips=(engine_cfg.chunk,),
              model_flops=model_flops.decode(shapes, r, slots, engine_cfg.chunk),
              held=resident + waiting, live=share,
              needs=bytes_of(params) + _seen(cache, shapes, live) + bytes_of(shared)),
  ]


def _cache(model: Model, rows: int, columns: int, mesh, side: int = 1):
  """Returns the engine's cache: rows over the devices, heads over `tensor`."""
  config = hand_over.decode_model(model).config
  shapes = jax.eval_shape(functools.partial(row_cache.empty, config, rows, columns, side))

  def lay(x):
    layout = parallel.spec(("rows", "kv_heads", None, None), x.shape, mesh)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=jax.NamedSharding(mesh, layout))

  return jax.tree.map(lay, shapes)


def _seen(cache: row_cache.RowCache, shapes: ModelConfig, live: float) -> float:
  """Returns the bytes of a cache that a step's tokens attend to; `live`: share of a row's columns.
  """
  columns = cache.keys[0].shape[2]
  return sum(bytes_of(layer) * min(live, (window or columns) / columns)
             for layers in (cache.keys, cache.values)
             for layer, window in zip(layers, kv_cache.windows(shapes), strict=True))


def _inputs(replicated, slots: int, forced: int, columns: int) -> ChunkInputs:
  """Returns inputs of a chunk; `forced` columns of tokens that are not sampled, 0 without turns."""
  turns = {"given": replicated((slots, forced)), "pending": replicated((slots,))} if forced else {}
  return ChunkInputs(*[replicated(()) for _ in range(2)], *[replicated((slots,)) for _ in range(6)],
                     **turns, columns=columns)


def _replicated(mesh, shape: tuple[int, ...]):
  return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=parallel.replicated(mesh))
