"""What a run samples with: programs, numerics, devices and tools."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Protocol

import jax
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.parallel import processes
from jaxrl_llm.config import DEFAULT, Config, ConfigError, SamplerConfig
from jaxrl_llm.models import Model, int8
from jaxrl_llm.registry import ENVIRONMENTS, TOOLS
from jaxrl_llm.rollouts import engine, engines, generate, hand_over, numerics, sizes
from jaxrl_llm.rollouts.environment import (
  OF_TOOL,
  Environment,
  StopStrings,
  make_environment,
  make_own,
)
from jaxrl_llm.rollouts.next_token import rules_on
from jaxrl_llm.rollouts.server import Limits, ServerSampler
from jaxrl_llm.rollouts.tools import OF_TASK
from jaxrl_llm.types import Params, Problem, PromptBatch, Rollout, Sampling, Task

Problems = Mapping[int, Problem]


class PrepareFn(Protocol):
  """Prepares parameters for `Sampler.sample`."""

  def __call__(self, params: Params) -> Params: ...


class SampleFn(Protocol):
  """Samples `rollout.group_size` rows of each prompt; the metrics are host values.

  An environment may read `problems`, the problem of each row id.
  """

  def __call__(self, params: Params, prompts: PromptBatch, key: jax.Array, sampling: Sampling,
               problems: Problems | None = None) -> tuple[Rollout, dict[str, float]]: ...


class HeldoutFn(Protocol):
  """Samples one row of each prompt; `problems` as in `SampleFn`."""

  def __call__(self, params: Params, prompts: PromptBatch, key: jax.Array, sampling: Sampling,
               problems: Problems | None = None) -> Rollout: ...


@dataclasses.dataclass(frozen=True)
class Sampler:
  """What a run samples with. Programs are compiled on first use.

  Attributes:
    sampling: temperature and vocabulary of the training rollouts.
    mesh: the devices that train; prompts are placed on those of this process, and rollouts come
      back to all of them.
    rollout_mesh: the devices that sample: those of `mesh` in this process, unless mesh.rollout sets
      some apart.
    environment: ends turns by tools or stop strings, in training and evaluation; None without
      either.
    prepare: copies parameters to `rollout_mesh` in the rollout's numerics and the layout of
      decoding, or hands them to the server. Call it once per iteration: without a server, `sample`
      would do it, without the numerics, each time.
    sample: training rollouts, in the rollout's numerics.
    prepare_heldout: as `prepare`, for `sample_heldout`; call it once per evaluation.
    sample_heldout: evaluation, in the trainer's numerics on the devices that train; its rows stay
      in this process.
  """

  sampling: Sampling
  mesh: Mesh
  rollout_mesh: Mesh
  environment: Environment | None
  prepare: PrepareFn
  sample: SampleFn
  prepare_heldout: PrepareFn
  sample_heldout: HeldoutFn

  def close(self) -> None:
    """Ends the tool's processes. A second call does nothing."""
    if self.environment is not None:
      self.environment.close()


def make_sampler(cfg: Config, task: Task, model: Model, mesh: Mesh, rollout_mesh: Mesh) -> Sampler:
  """The sampler of a run, which the caller closes.

  Args:
    mesh, rollout_mesh: the devices that train and that sample.

  Raises:
    ConfigError: the tool does not start, or does not fit the tokenizer.
  """
  environment = make_run_environment(cfg, task)
  if cfg.server.url:
    server = _server(cfg, task, model, mesh)
    prepare, sample = server.prepare, server.sample
  else:
    prepare = _make_prepare(cfg, model, mesh, rollout_mesh)
    sample = _sampler_on(rollout_mesh, mesh, numerics.rollout_model(model, cfg.rollout), cfg, task,
                         environment, cfg.rollout.group_size)
  return Sampler(
      sampling=sampling_of(cfg, "sampler"),
      mesh=mesh,
      rollout_mesh=rollout_mesh,
      environment=environment,
      prepare=prepare,
      sample=sample,
      prepare_heldout=_on_own(hand_over.make(model, parallel.of_whole_rows(mesh)), mesh),
      sample_heldout=_heldout_sampler(cfg, model, task, environment, mesh),
  )


def _server(cfg: Config, task: Task, model: Model, mesh: Mesh) -> ServerSampler:
  """The sampler that asks the server of `cfg.server`."""
  r = cfg.rollout
  limits = Limits(r.max_new_tokens, r.min_new_tokens, task.stop_ids, cfg.model.vocab_size)
  return ServerSampler(cfg.server, model, task.tokenizer, limits, r.group_size, mesh)


def sampling_of(cfg: Config, side: str) -> Sampling:
  """Temperature and vocabulary of a side, `sampler` or `trainer` (see `vocabulary.side`), and the
  sampler's noise.
  """
  rules = cfg.vocabulary.rules if cfg.vocabulary.side in ("both", side) else {}
  noise = cfg.rollout.logit_noise if side == "sampler" else 0.0
  return Sampling.of(cfg.rollout.temperature, **rules, logit_noise=noise)


def make_run_environment(cfg: Config, task: Task) -> Environment | None:
  """The environment that ends turns; None if rows end by stop token and length only.

  The Python sandbox has as many workers as the engine has threads.

  Raises:
    ConfigError: the tool does not start, or does not fit the tokenizer.
  """
  r = cfg.rollout
  if r.stop_strings:
    return StopStrings(task.tokenizer, r.stop_strings, eos_ids=task.stop_ids)
  if not r.max_turns:
    return None
  if cfg.environment.name != OF_TOOL:
    return make_own(cfg.environment.name, task.tokenizer, task.stop_ids, r.max_tool_tokens,
                    ENVIRONMENTS.numbers(cfg.environment))
  tool, protocol = tool_of(cfg, task)
  numbers = TOOLS.numbers(cfg.tool) if tool == cfg.tool.name else None
  return make_environment(task.tokenizer, protocol, tool, eos_ids=task.stop_ids,
                          max_output_tokens=r.max_tool_tokens, numbers=numbers,
                          workers=r.tool_workers)


def tool_of(cfg: Config, task: Task) -> tuple[str, str]:
  """(tool, protocol) of a run with turns: the config's, else the task's.

  Raises:
    ConfigError: neither names a tool.
  """
  of_task = cfg.tool.name == OF_TASK
  tool = task.tool if of_task else cfg.tool.name
  if tool is None:
    others = ", ".join(name for name in TOOLS if name != OF_TASK)
    raise ConfigError(
        f"rollout.max_turns = {cfg.rollout.max_turns}: task.name = {cfg.task.name!r} has no tool. "
        f"Fix: rollout.max_turns=0, or tool.name= one of {others}.")
  if cfg.tool.protocol != DEFAULT:
    return tool, cfg.tool.protocol
  return tool, task.protocol if of_task else TOOLS[tool].protocol


def _make_prepare(cfg: Config, model: Model, mesh: Mesh, rollout_mesh: Mesh) -> PrepareFn:
  """Makes `Sampler.prepare`, which returns its argument if numerics, form and devices are right.
  """
  sampling_model = numerics.rollout_model(model, cfg.rollout)
  apart = parallel.apart(rollout_mesh, mesh)
  lay_out = hand_over.make(sampling_model, rollout_mesh if apart else parallel.of_whole_rows(mesh))

  def rollout_numerics(params):
    return numerics.rollout_numerics(model, params, cfg.rollout)[1]

  rounded = _identity
  if numerics.changes_params(model, cfg.rollout):
    rounded = jax.jit(rollout_numerics)
  if not apart:
    return _on_own(lambda params: lay_out(rounded(params)), mesh)
  # Another thread may call this while the training devices work, so no collective may run there: a
  # scale of int8 is a maximum over shards, so that rounding waits until the copy is made.
  elementwise = cfg.rollout.quantization == int8.NONE
  narrowed = hand_over.make(sampling_model, None)

  def prepare(params):
    if elementwise:
      return lay_out(_copied(narrowed(rounded(params)), rollout_mesh))
    return lay_out(rounded(_copied(params, rollout_mesh)))

  return prepare


def _on_own(prepare: PrepareFn, mesh: Mesh) -> PrepareFn:
  """`prepare`, whose copy is then the one on this process's devices.

  All processes make the copy together. From there each samples alone.
  """
  if not parallel.spans_processes(mesh):
    return prepare
  own = parallel.of_whole_rows(parallel.of_process(mesh))
  return lambda params: parallel.held_by(prepare(params), own)


def _copied(params: Params, mesh: Mesh) -> Params:
  """Returns the parameters whole on each device of a mesh."""
  return parallel.transfer(params, parallel.replicated(mesh))


def _identity(params: Params) -> Params:
  return params


def _sampler_on(sampling: Mesh, mesh: Mesh, model: Model, cfg: Config, task: Task,
                environment: Environment | None, group: int) -> SampleFn:
  """Makes a sampler that gets its prompts from the devices of `mesh` and returns its rows to them.

  Args:
    sampling: the devices that sample.
    group: rows of each prompt.
  """
  if sampling is mesh:
    return _sampler(cfg, model, task, environment, mesh, group)
  model = dataclasses.replace(model, constrain=parallel.Layout(sampling))
  sample_there = _sampler(cfg, model, task, environment, sampling, group)

  def sample(params, prompts, key, sampling_rules, problems=None):
    prompts = parallel.transfer(prompts, parallel.rows(sampling))
    rollout, metrics = sample_there(params, prompts, key, sampling_rules, problems)
    return parallel.spread(rollout, mesh), metrics

  return sample


def _heldout_sampler(cfg: Config, model: Model, task: Task, environment: Environment | None,
                     mesh: Mesh) -> HeldoutFn:
  """Makes `Sampler.sample_heldout`, with slots, tools and stop strings as in training."""
  own = parallel.of_process(mesh)
  model = dataclasses.replace(model, constrain=parallel.Layout(own))
  sample = _sampler_on(parallel.of_whole_rows(own), own, model, cfg, task, environment, 1)

  def sample_heldout(params, prompts, key, sampling, problems=None):
    rollout, _ = sample(params, prompts, key, sampling, problems)
    return rollout

  return sample_heldout


def _sampler(cfg: Config, model: Model, task: Task, environment: Environment | None, mesh: Mesh,
             group: int) -> SampleFn:
  """One compiled program, or the engine's host loop with rollout.slots, which tools and stop
  strings need.
  """
  r = cfg.rollout
  if not r.slots:
    program = _program(cfg, model, task, mesh, group)

    def sample_without_metrics(params, prompts, key, sampling, problems=None):
      return program(params, prompts, key, sampling), {}

    return sample_without_metrics

  turns = {} if environment is None else {"tool_chunks": 0}
  if r.max_turns:
    turns |= {
        "max_turns": r.max_turns,
        "max_turn_tokens": r.max_turn_tokens,
        "tool_workers": r.tool_workers,
        "tool_chunks": r.tool_chunks,
    }
  # A group of one row has no prefix to share, so it may run on several devices.
  slots = -(-r.slots // processes.count())
  own = engine.EngineConfig(group, r.max_new_tokens, r.window, task.stop_ids,
                            task.tokenizer.pad_token_id, r.min_new_tokens, slots=slots,
                            chunk=min(r.chunk, r.max_new_tokens), compact=r.compaction,
                            shared_prefix=r.shared_prefix and group > 1)
  of_each = r.engine_per_device and sizes.shards(mesh) > 1

  def sample(params, prompts, key, sampling, problems=None):
    told = environment
    if problems is not None and hasattr(environment, "for_rows"):
      told = environment.for_rows(problems)
    run = engines.run if of_each else engine.run
    rollout, stats = run(params, prompts, key, sampling, model=model, cfg=own, mesh=mesh,
                         environment=told, **turns)
    metrics = {
        "rollout/wasted_slots": stats.waste,
        "rollout/chunks": float(stats.chunks),
        "rollout/cache_read": stats.cache_bytes_read / max(1, stats.cache_bytes_needed),
    }
    if r.stop_strings:
      rollout = rollout.replace(turn_id=None, void=None)  # each row is one turn, as without them
    if r.max_turns:
      metrics |= {"tool/calls": float(stats.tool_calls), "time/tools": stats.tool_seconds}
    return rollout, metrics

  return sample


def _program(cfg: Config, model: Model, task: Task, mesh: Mesh,
             group: int) -> Callable[..., Rollout]:
  """One compiled program that samples `group` rows of each prompt."""
  r = cfg.rollout
  sizes = SamplerConfig(group, r.max_new_tokens, r.window, task.stop_ids,
                        task.tokenizer.pad_token_id, min_new_tokens=r.min_new_tokens)
  program = jax.jit(functools.partial(generate, model=hand_over.decode_model(model), cfg=sizes),
                    static_argnames="rules", out_shardings=parallel.rows(mesh))
  lay_out = hand_over.make(model, mesh)

  def sample(params, prompts, key, sampling):
    return program(lay_out(params), prompts, key, sampling, rules=rules_on(sampling))

  return sample
