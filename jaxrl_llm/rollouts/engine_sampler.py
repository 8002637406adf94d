"""The sampler on the run's own devices: one compiled program, or the engine's host loop."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import RolloutConfig, SamplerConfig
from jaxrl_llm.models import Model, int8
from jaxrl_llm.parallel import processes
from jaxrl_llm.rollouts import generate, hand_over, numerics
from jaxrl_llm.rollouts.next_token import rules_on
from jaxrl_llm.rollouts.sample_functions import InFlightFn, PrepareFn, SampleFn
from jaxrl_llm.types import Params, Rollout, Task

if TYPE_CHECKING:  # a run without rollout.slots does not import the engine
  from jaxrl_llm.rollouts.environment import Environment
  from jaxrl_llm.rollouts.rollout_table import Stats


@dataclasses.dataclass(frozen=True)
class Rows:
  """Settings of a completion, for the samplers of training and evaluation.

  Attributes:
    cfg: lengths, turns, and how many rows decode at the same time.
    group_size: completions of each prompt.
    stop_ids, pad_id: token ids of the task.
    environment: ends turns by tools or stop strings; None without either.
  """

  cfg: RolloutConfig
  group_size: int
  stop_ids: tuple[int, ...]
  pad_id: int
  environment: "Environment | None"

  @staticmethod
  def of_task(cfg: RolloutConfig, task: Task, environment: "Environment | None",
              group_size: int | None = None) -> "Rows":
    """Returns the rows of a run's task; `group_size` None: as the config says."""
    return Rows(cfg, cfg.group_size if group_size is None else group_size, task.stop_ids,
                task.tokenizer.pad_token_id, environment)


def make_prepare(cfg: RolloutConfig, model: Model, mesh: Mesh, rollout_mesh: Mesh) -> PrepareFn:
  """Makes `Sampler.prepare` of the engine, which returns its argument if numerics, form and devices
  are right.
  """
  sampling_model = numerics.rollout_model(model, cfg)
  separate = parallel.apart(rollout_mesh, mesh)
  lay_out = hand_over.make(sampling_model,
                           rollout_mesh if separate else parallel.row_mesh(mesh))

  def rollout_numerics(params):
    return numerics.rollout_numerics(model, params, cfg)[1]

  rounded = _identity
  if numerics.changes_params(model, cfg):
    rounded = jax.jit(rollout_numerics)
  if not separate:
    return local_prepare(lambda params: lay_out(rounded(params)), mesh)
  # Another thread may call this while the training devices work, so no collective may run there: a
  # scale of int8 is a maximum over shards, so that rounding waits until the copy is made.
  elementwise = cfg.quantization == int8.NONE
  narrowed = hand_over.make(sampling_model, None)

  def prepare(params):
    if elementwise:
      return lay_out(_copied(narrowed(rounded(params)), rollout_mesh))
    return lay_out(rounded(_copied(params, rollout_mesh)))

  return prepare


def local_prepare(prepare: PrepareFn, mesh: Mesh) -> PrepareFn:
  """Returns `prepare` with its copy restricted to this process's devices.

  All processes make the copy together. After that each samples without the others.
  """
  if not parallel.spans_processes(mesh):
    return prepare
  local_mesh = parallel.row_mesh(parallel.of_process(mesh))
  return lambda params: parallel.held_by(prepare(params), local_mesh)


def _copied(params: Params, mesh: Mesh) -> Params:
  """Returns the parameters, replicated on each device of a mesh."""
  return parallel.transfer(params, parallel.replicated(mesh))


def _identity(params: Params) -> Params:
  return params


def sampler_on(sampling: Mesh, mesh: Mesh, model: Model, rows: Rows) -> SampleFn:
  """Makes a sampler that gets its prompts from the devices of `mesh` and returns its rows to them.

  Args:
    sampling: the devices that sample.
  """
  if sampling is mesh:
    return _sampler(model, rows, mesh)
  model = dataclasses.replace(model, constrain=parallel.Layout(sampling))
  sample_there = _sampler(model, rows, sampling)

  def sample(params, prompts, key, sampling_rules, problems=None):
    prompts = parallel.transfer(prompts, parallel.rows(sampling))
    rollout, metrics = sample_there(params, prompts, key, sampling_rules, problems)
    return parallel.spread(rollout, mesh), metrics

  return sample


def _sampler(model: Model, rows: Rows, mesh: Mesh) -> SampleFn:
  """Returns one compiled program, or the engine's host loop with rollout.slots, which tools and
  stop strings need.
  """
  r, environment = rows.cfg, rows.environment
  if not r.slots:
    program = _program(model, rows, mesh)

    def sample_without_metrics(params, prompts, key, sampling, problems=None):
      return program(params, prompts, key, sampling, rules=rules_on(sampling)), {}

    return sample_without_metrics

  from jaxrl_llm.rollouts import engine, engines, sizes
  parts, of_each = _engine_parts(rows), r.engine_per_device and sizes.shards(mesh) > 1

  def sample(params, prompts, key, sampling, problems=None):
    run = engines.run if of_each else engine.run
    rollout, stats = run(params, prompts, key, sampling, model=model, mesh=mesh,
                         environment=_row_environment(environment, problems), **parts)
    return _without_turns(r, rollout), _engine_metrics(r, stats)

  return sample


def in_flight_sampler(sampling: Mesh, mesh: Mesh, model: Model, rows: Rows) -> InFlightFn:
  """Makes `Sampler.sample_on` of the engine; the meshes as in `sampler_on`. Prompts are on the
  host.
  """
  from jaxrl_llm.rollouts import engine
  if sampling is not mesh:
    model = dataclasses.replace(model, constrain=parallel.Layout(sampling))
  parts = _engine_parts(rows)

  def sample_on(params, prompts, key, sampling_rules, in_flight, problems):
    rollout, unfinished, stats = engine.run_on(
        params, prompts, key, sampling_rules, in_flight, model=model, mesh=sampling,
        environment=_row_environment(rows.environment, problems), **parts)
    metrics = _engine_metrics(rows.cfg, stats) | {
        "in_flight/fed_again": stats.replayed_steps / max(1, stats.slot_steps)}
    return parallel.spread(_without_turns(rows.cfg, rollout), mesh), unfinished, metrics

  return sample_on


def _engine_parts(rows: Rows) -> dict[str, Any]:
  """Returns sizes of the engine and settings of turns, by the names of `engine.run`."""
  from jaxrl_llm.rollouts.sizes import EngineConfig
  r, group = rows.cfg, rows.group_size
  # A group of one row has no prefix to share, so it may run on several devices.
  slots = -(-r.slots // processes.count())
  engine_cfg = EngineConfig(group, r.max_new_tokens, r.window, rows.stop_ids, rows.pad_id,
                            r.min_new_tokens, slots=slots,
                            chunk=min(r.chunk, r.max_new_tokens),
                            shared_prefix=r.shared_prefix and group > 1,
                            attention=r.decode_attention)
  turns = {} if rows.environment is None else {"tool_chunks": 0}
  if r.max_turns:
    turns |= {
        "max_turns": r.max_turns,
        "max_turn_tokens": r.max_turn_tokens,
        "tool_workers": r.tool_workers,
        "tool_chunks": r.tool_chunks,
    }
  return {"cfg": engine_cfg, **turns}


def _row_environment(environment: "Environment | None", problems) -> "Environment | None":
  """Returns the environment of a batch; it gets the batch's problems if it has `for_rows`."""
  if problems is not None and hasattr(environment, "for_rows"):
    return environment.for_rows(problems)
  return environment


def _without_turns(cfg: RolloutConfig, rollout: Rollout) -> Rollout:
  """With stop strings each row is one turn, as without them."""
  return rollout.replace(turn_id=None, void=None) if cfg.stop_strings else rollout


def _engine_metrics(cfg: RolloutConfig, stats: "Stats") -> dict[str, float]:
  metrics = {
      "rollout/wasted_slots": stats.waste,
      "rollout/chunks": float(stats.chunks),
      "rollout/cache_read": stats.cache_bytes_read / max(1, stats.cache_bytes_needed),
  }
  if cfg.max_turns:
    metrics |= {"tool/calls": float(stats.tool_calls), "time/tools": stats.tool_seconds}
  return metrics


def _program(model: Model, rows: Rows, mesh: Mesh) -> Callable[..., Rollout]:
  """Returns one compiled program that samples each prompt's rows, from prepared parameters."""
  r = rows.cfg
  cfg = SamplerConfig(rows.group_size, r.max_new_tokens, r.window, rows.stop_ids, rows.pad_id,
                      min_new_tokens=r.min_new_tokens, routing=r.routing)
  model = hand_over.decode_model(model)
  return jax.jit(functools.partial(generate, model=model, cfg=cfg), static_argnames="rules",
                 out_shardings=parallel.rows(mesh))
