"""The samplers of a run: which program draws, in which numerics, on which devices, with which
tools.
"""

import dataclasses
import functools

import jax

from jaxrl_llm import parallel
from jaxrl_llm.config import Config, SamplerConfig
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import engine, generate, numerics
from jaxrl_llm.rollouts.environment import Environment, StopStrings, make_environment


def make_run_environment(cfg: Config, task) -> Environment | None:
  """What ends turns in a run, for training and evaluation alike; None where rows end by stop token
  and length alone.

  The Python sandbox has as many workers as the engine has threads.

  Raises:
    ConfigError: the tool does not start, or does not fit the tokenizer.
  """
  r = cfg.rollout
  if r.stop_strings:
    return StopStrings(task.tokenizer, r.stop_strings, eos_ids=task.stop_ids)
  if not r.max_turns:
    return None
  options = {"workers": r.tool_workers} if task.tool == "python" else {}
  return make_environment(task.tokenizer, task.protocol, task.tool, eos_ids=task.stop_ids,
                          max_output_tokens=r.max_tool_tokens, **options)


def sampler_parameters(cfg: Config, model: Model, mesh, drawing):
  """parameters -> those that `training_sampler` reads; the same arrays where numerics and devices
  are the trainer's.

  Args:
    mesh, drawing: devices that train and that draw.
  """
  there = lambda params: params if drawing is mesh else parallel.transfer(
      params, parallel.replicated(drawing))
  if not numerics.changes_params(model, cfg.rollout):
    return there
  rounded = jax.jit(lambda params: numerics.rollout_numerics(model, params, cfg.rollout)[1])

  def made(params):
    params = there(params)
    return parallel.transfer(rounded(params), jax.tree.map(lambda x: x.sharding, params))

  return made


def training_sampler(cfg: Config, model: Model, task, environment: Environment | None, mesh,
                     drawing):
  """(params, prompts, key, sampling) -> (Rollout, host metrics): `rollout.group_size` rows of each
  prompt.

  In the rollout's numerics, with parameters from `sampler_parameters`; prompts go to the devices
  that draw, and rows come back to those that train.

  Args:
    mesh, drawing: devices that train and that draw.
  """
  group, model = cfg.rollout.group_size, numerics.rollout_model(model, cfg.rollout)
  if drawing is mesh:
    return _sampler(cfg, model, task, environment, mesh, group)
  model = dataclasses.replace(model, constrain=parallel.Layout(drawing))
  there = _sampler(cfg, model, task, environment, drawing, group)

  def sample(params, prompts, key, sampling):
    rollout, metrics = there(params, parallel.transfer(prompts, parallel.rows(drawing)), key,
                             sampling)
    return parallel.transfer(rollout, parallel.rows(mesh)), metrics

  return sample


def heldout_sampler(cfg: Config, model: Model, task, environment: Environment | None, mesh):
  """(params, prompts, key, sampling) -> Rollout, one row of each prompt, in the trainer's numerics
  and on its devices.

  Evaluation speaks of the trained policy, with tools or stop strings where training has them.
  """
  if environment is None:
    return _program(cfg, model, task, mesh, 1)
  sample = _sampler(cfg, model, task, environment, mesh, 1)
  return lambda *arguments: sample(*arguments)[0]


def _sampler(cfg: Config, model: Model, task, environment: Environment | None, mesh, group: int):
  """One compiled program, or the engine's host loop where `rollout.slots` is set: tools and stop
  strings need it.
  """
  r = cfg.rollout
  if not r.slots:
    program = _program(cfg, model, task, mesh, group)
    return lambda *arguments: (program(*arguments), {})
  turns = {} if environment is None else {"environment": environment, "tool_chunks": 0}
  if r.max_turns:
    turns |= {
        "max_turns": r.max_turns,
        "max_turn_tokens": r.max_turn_tokens,
        "tool_workers": r.tool_workers,
        "tool_chunks": r.tool_chunks
    }
  # A group of one shares with nobody, and may be drawn on several devices.
  sizes = engine.EngineConfig(group, r.max_new_tokens, r.window, task.stop_ids,
                              task.tokenizer.pad_token_id, r.min_new_tokens, slots=r.slots,
                              chunk=min(r.chunk, r.max_new_tokens), compact=r.compaction,
                              shared_prefix=r.shared_prefix and group > 1)

  def sample(params, prompts, key, sampling):
    rollout, stats = engine.run(params, prompts, key, sampling, model=model, cfg=sizes, mesh=mesh,
                                **turns)
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
  sizes = SamplerConfig(group, r.max_new_tokens, r.window, task.stop_ids,
                        task.tokenizer.pad_token_id, min_new_tokens=r.min_new_tokens)
  return jax.jit(functools.partial(generate, model=model, cfg=sizes),
                 out_shardings=parallel.rows(mesh))
