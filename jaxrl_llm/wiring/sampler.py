"""The sampler: programs, numerics, devices and tools."""

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import (
  DEFAULT,
  Config,
  ConfigError,
  EnvironmentConfig,
  RolloutConfig,
  ToolConfig,
  VocabularyConfig,
)
from jaxrl_llm.models import Model
from jaxrl_llm.registry import ENVIRONMENTS, TOOLS
from jaxrl_llm.rollouts import backends, engine_sampler, hand_over, numerics
from jaxrl_llm.rollouts.environment_table import OF_TOOL
from jaxrl_llm.rollouts.sample_functions import HeldoutFn, InFlightFn, PrepareFn, SampleFn
from jaxrl_llm.rollouts.tools import OF_TASK
from jaxrl_llm.types import Sampling, Task

if TYPE_CHECKING:  # imported for runs that have one
  from jaxrl_llm.rollouts.environment import Environment

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Sampler:
  """Sampling functions of a run. Programs are compiled on first use.

  Attributes:
    sampling: temperature and vocabulary of the training rollouts.
    mesh: the devices that train; prompts are placed on this process's devices, and rollouts come
      back to all of them.
    rollout_mesh: the devices that sample: those of `mesh` in this process, unless mesh.rollout
      reserves some.
    environment: ends turns by tools or stop strings, in training and evaluation; None without
      either.
    prepare: copies parameters to `rollout_mesh` in the rollout's numerics and the layout of
      decoding, or hands them to the server. Call it once per iteration.
    sample: training rollouts, in the rollout's numerics, with parameters that `prepare` returned.
    sample_on: with `updates.in_flight`, in place of `sample`; None without it.
    prepare_heldout: as `prepare`, for `sample_heldout`; call it once per evaluation.
    sample_heldout: evaluation, in the trainer's numerics on the devices that train; its rows stay
      in this process.
  """

  sampling: Sampling
  mesh: Mesh
  rollout_mesh: Mesh
  environment: "Environment | None"
  prepare: PrepareFn
  sample: SampleFn
  prepare_heldout: PrepareFn
  sample_heldout: HeldoutFn
  sample_on: InFlightFn | None = None

  def close(self) -> None:
    """Ends the tool's processes. A second call does nothing.

    An environment of a plugin that cannot be closed is warned of: the run has what it sampled.
    """
    if self.environment is None:
      return
    try:
      self.environment.close()
    except (Exception, SystemExit) as error:
      reason = " ".join(str(error).split())[:300]
      logger.warning("environment %s: close: %s: %s; the run is not affected",
                     type(self.environment).__qualname__, type(error).__name__, reason)


def make_sampler(cfg: Config, task: Task, model: Model, mesh: Mesh, rollout_mesh: Mesh) -> Sampler:
  """Returns the sampler of a run, which the caller closes.

  Args:
    mesh, rollout_mesh: the devices that train and that sample.

  Raises:
    ConfigError: the tool does not start, or does not fit the tokenizer.
  """
  environment = make_run_environment(cfg.rollout, cfg.tool, cfg.environment, task, cfg.task.name)
  prepare, sample = backends.make(backends.BackendParts(
      cfg.rollout, cfg.server, task, model, mesh, rollout_mesh, environment))
  heldout = dataclasses.replace(cfg.rollout, routing=False)  # nothing trains on these rows
  rows = engine_sampler.Rows.of_task(heldout, task, environment, group_size=1)
  return Sampler(
      sampling=sampling_of(cfg.rollout, cfg.vocabulary, "sampler"),
      mesh=mesh,
      rollout_mesh=rollout_mesh,
      environment=environment,
      prepare=prepare,
      sample=sample,
      prepare_heldout=engine_sampler.local_prepare(
          hand_over.make(model, parallel.row_mesh(mesh)), mesh),
      sample_heldout=_heldout_sampler(model, rows, mesh),
      sample_on=engine_sampler.in_flight_sampler(
          rollout_mesh, mesh, numerics.rollout_model(model, cfg.rollout),
          engine_sampler.Rows.of_task(cfg.rollout, task, environment)
      ) if cfg.updates.in_flight else None,
  )


def sampling_of(rollout: RolloutConfig, vocabulary: VocabularyConfig, side: str) -> Sampling:
  """Returns the temperature and vocabulary of a side, `sampler` or `trainer` (see
  `vocabulary.side`), and the sampler's noise.
  """
  noise = rollout.logit_noise if side == "sampler" else 0.0
  return Sampling.of(rollout.temperature, logit_noise=noise, **vocabulary.rules_of(side))


def make_run_environment(rollout: RolloutConfig, tool: ToolConfig, environment: EnvironmentConfig,
                         task: Task, task_name: str) -> "Environment | None":
  """Returns the environment that ends turns; None if rows end by stop token and length only.

  The Python sandbox has as many workers as the engine has threads.

  Raises:
    ConfigError: the tool does not start, or does not fit the tokenizer.
  """
  r = rollout
  if not r.stop_strings and not r.max_turns:
    return None
  from jaxrl_llm.rollouts.environment import StopStrings, ToolCalls, from_plugin, make_environment
  if r.stop_strings:
    return StopStrings(task.tokenizer, r.stop_strings, eos_ids=task.stop_ids)
  if environment.name != OF_TOOL:
    return from_plugin(environment.name, task.tokenizer, task.stop_ids, r.max_tool_tokens,
                       ENVIRONMENTS.numbers(environment))
  name, protocol = tool_of(tool, task, task_name, r.max_turns)
  numbers = TOOLS.numbers(tool) if name == tool.name else None
  return make_environment(task.tokenizer, protocol, name, eos_ids=task.stop_ids,
                          max_output_tokens=r.max_tool_tokens,
                          calls=ToolCalls(numbers, r.tool_workers))


def tool_of(cfg: ToolConfig, task: Task, task_name: str, max_turns: int) -> tuple[str, str]:
  """Returns (tool, protocol) of a run with turns: the config's, else the task's.

  Args:
    task_name, max_turns: task.name and rollout.max_turns.

  Raises:
    ConfigError: neither names a tool.
  """
  of_task = cfg.name == OF_TASK
  tool = task.tool if of_task else cfg.name
  if tool is None:
    tool_names = ", ".join(name for name in TOOLS if name != OF_TASK)
    raise ConfigError(
        f"rollout.max_turns = {max_turns}: task.name = {task_name!r} has no tool. "
        f"Fix: rollout.max_turns=0, or tool.name= one of {tool_names}.")
  if cfg.protocol != DEFAULT:
    return tool, cfg.protocol
  return tool, task.protocol if of_task else TOOLS[tool].protocol


def _heldout_sampler(model: Model, rows: engine_sampler.Rows, mesh: Mesh) -> HeldoutFn:
  """Makes `Sampler.sample_heldout`, with slots, tools and stop strings as in training."""
  local_mesh = parallel.of_process(mesh)
  model = dataclasses.replace(model, constrain=parallel.Layout(local_mesh))

  @functools.cache
  def of_groups(group_size):
    return engine_sampler.sampler_on(parallel.row_mesh(local_mesh), local_mesh, model,
                                     dataclasses.replace(rows, group_size=group_size))

  def sample_heldout(params, prompts, key, sampling, problems=None, group_size=1):
    divides = rows.cfg.slots % group_size == 0  # the engine's slots hold groups
    sample = of_groups(group_size if divides else 1)
    rollout, _ = sample(params, prompts, key, sampling, problems)
    return rollout

  return sample_heldout
