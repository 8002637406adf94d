"""The samplers of a run: which program draws, in which numerics, on which devices, with which tools."""

import dataclasses
import functools

import jax

from jaxrl_llm import parallel
from jaxrl_llm.config import Config, SamplerConfig
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import engine, generate, numerics
from jaxrl_llm.rollouts.environment import StopStrings, make_environment


def training_sampler(cfg: Config, model: Model, task, mesh, drawing):
  """(params, prompts, key, sampling) -> (Rollout, host metrics): `rollout.group_size` rows of each prompt.

  In the rollout's numerics, with parameters made from the trained ones for each rollout.

  Args:
    mesh, drawing: devices that train and that draw.
  """
  sampler = numerics.rollout_model(model, cfg.rollout)
  sample = _placed_sampler(cfg, sampler, task, mesh, drawing)
  if not numerics.changes_params(model, cfg.rollout):
    return sample
  rounded = jax.jit(lambda params: numerics.rollout_numerics(model, params, cfg.rollout)[1])
  made = lambda params: parallel.transfer(rounded(params), jax.tree.map(lambda x: x.sharding, params))
  return lambda params, *rest: sample(made(params), *rest)


def heldout_sampler(cfg: Config, model: Model, task, mesh):
  """(params, prompts, key, sampling) -> Rollout, one row of each prompt, in the trainer's numerics and on its devices.

  Evaluation speaks of the trained policy, with tools or stop strings where training has them.
  """
  if not (cfg.rollout.max_turns or cfg.rollout.stop_strings):
    return _program(cfg, model, task, mesh, 1)
  sample = _sampler(cfg, model, task, mesh, 1)
  return lambda *arguments: sample(*arguments)[0]


def _placed_sampler(cfg: Config, model: Model, task, mesh, drawing):
  """`_sampler` on the devices that draw: prompts go there, and rows come back to those that train."""
  group = cfg.rollout.group_size
  if drawing is mesh:
    return _sampler(cfg, model, task, mesh, group)
  model = dataclasses.replace(model, constrain=parallel.Layout(drawing))
  there = _sampler(cfg, model, task, drawing, group)

  def sample(params, prompts, key, sampling):
    rollout, metrics = there(params, parallel.transfer(prompts, parallel.rows(drawing)), key, sampling)
    return parallel.transfer(rollout, parallel.rows(mesh)), metrics

  return sample


def _sampler(cfg: Config, model: Model, task, mesh, group: int):
  """One compiled program, or the engine's host loop where `rollout.slots` is set: tools and stop strings need it."""
  r = cfg.rollout
  if not r.slots:
    program = _program(cfg, model, task, mesh, group)
    return lambda *arguments: (program(*arguments), {})
  turns = {}
  if r.max_turns:
    environment = make_environment(task.tokenizer, task.protocol, task.tool, eos_ids=task.stop_ids,
                                   max_output_tokens=r.max_tool_tokens)
    turns = {"environment": environment, "max_turns": r.max_turns, "max_turn_tokens": r.max_turn_tokens,
             "tool_chunks": r.tool_chunks}
  if r.stop_strings:
    turns = {"environment": StopStrings(task.tokenizer, r.stop_strings, eos_ids=task.stop_ids), "tool_chunks": 0}
  sizes = engine.EngineConfig(group, r.max_new_tokens, r.slots, min(r.chunk, r.max_new_tokens), r.window,
                              task.stop_ids, task.tokenizer.pad_token_id, min_new_tokens=r.min_new_tokens,
                              compact=r.compaction, shared_prefix=r.shared_prefix)

  def sample(params, prompts, key, sampling):
    rollout, stats = engine.run(params, prompts, key, sampling, model=model, cfg=sizes, mesh=mesh, **turns)
    metrics = {"rollout/wasted_slots": stats.waste, "rollout/chunks": float(stats.chunks),
               "rollout/cache_read": stats.cache_bytes_read / max(1, stats.cache_bytes_needed)}
    if r.stop_strings:
      rollout = rollout.replace(turn_id=None, void=None)  # each row is one turn, as without them
    if r.max_turns:
      metrics |= {"tool/calls": float(stats.tool_calls), "time/tools": stats.tool_seconds}
    return rollout, metrics

  return sample


def _program(cfg: Config, model: Model, task, mesh, group: int):
  """The single program: (params, prompts, key, sampling) -> Rollout."""
  r = cfg.rollout
  sizes = SamplerConfig(group, r.max_new_tokens, r.window, task.stop_ids, task.tokenizer.pad_token_id,
                        min_new_tokens=r.min_new_tokens)
  return jax.jit(functools.partial(generate, model=model, cfg=sizes), out_shardings=parallel.rows(mesh))
