"""What a run samples with: programs, numerics, devices and tools."""

import dataclasses

from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.build import backends, engine_sampler
from jaxrl_llm.build.sampler_types import HeldoutFn, PrepareFn, Problems, SampleFn
from jaxrl_llm.config import DEFAULT, Config, ConfigError
from jaxrl_llm.models import Model
from jaxrl_llm.registry import ENVIRONMENTS, TOOLS
from jaxrl_llm.rollouts import hand_over
from jaxrl_llm.rollouts.environment import (
  OF_TOOL,
  Environment,
  StopStrings,
  make_environment,
  make_own,
)
from jaxrl_llm.rollouts.tools import OF_TASK
from jaxrl_llm.types import Sampling, Task

__all__ = ["HeldoutFn", "PrepareFn", "Problems", "SampleFn", "Sampler", "make_run_environment",
           "make_sampler", "sampling_of", "tool_of"]


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
  prepare, sample = backends.make(
      backends.BackendParts(cfg, task, model, mesh, rollout_mesh, environment))
  return Sampler(
      sampling=sampling_of(cfg, "sampler"),
      mesh=mesh,
      rollout_mesh=rollout_mesh,
      environment=environment,
      prepare=prepare,
      sample=sample,
      prepare_heldout=engine_sampler.on_own(
          hand_over.make(model, parallel.of_whole_rows(mesh)), mesh),
      sample_heldout=_heldout_sampler(cfg, model, task, environment, mesh),
  )


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


def _heldout_sampler(cfg: Config, model: Model, task: Task, environment: Environment | None,
                     mesh: Mesh) -> HeldoutFn:
  """Makes `Sampler.sample_heldout`, with slots, tools and stop strings as in training."""
  own = parallel.of_process(mesh)
  model = dataclasses.replace(model, constrain=parallel.Layout(own))
  sample = engine_sampler.sampler_on(parallel.of_whole_rows(own), own, model, cfg, task,
                                     environment, 1)

  def sample_heldout(params, prompts, key, sampling, problems=None):
    rollout, _ = sample(params, prompts, key, sampling, problems)
    return rollout

  return sample_heldout
