"""From a Config to checked values and compiled parts. Everything that can be refused is refused here, uncompiled."""

import dataclasses
import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax

from jaxrl_llm import config as config_lib
from jaxrl_llm import parallel
from jaxrl_llm.config import DEFAULT, Config, ConfigError, SamplerConfig, StepConfig, TaskConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective import advantages, estimators
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.rollouts import generate
from jaxrl_llm.tasks import ModularChain
from jaxrl_llm.training.batches import optimizer_batches
from jaxrl_llm.training.score import score
from jaxrl_llm.training.train_step import make_optimizer, make_train_step
from jaxrl_llm.types import merge_metrics

TASKS = {"modular_chain": ModularChain}


def resolve(cfg: Config) -> Config:
  """The config with every default filled in and every combination checked.

  Raises:
    ConfigError: naming key, value, what is allowed, and a fix.
  """
  load_plugins(cfg.plugins)
  config_lib.check(cfg)
  spec = estimators.spec(cfg.estimator.name)
  anchor = spec.anchor if cfg.updates.anchor == DEFAULT else cfg.updates.anchor
  aggregation = cfg.aggregation
  if aggregation.name == "fixed" and aggregation.fixed_length is None:
    aggregation = dataclasses.replace(aggregation, fixed_length=cfg.rollout.max_new_tokens)
  cfg = dataclasses.replace(cfg, estimator=estimators.resolve(cfg.estimator), aggregation=aggregation,
                            updates=dataclasses.replace(cfg.updates, anchor=anchor))
  if advantages.spec(cfg.advantage.name).group and cfg.rollout.group_size < 2:
    raise ConfigError(f"rollout.group_size = {cfg.rollout.group_size}: advantage.name = {cfg.advantage.name!r} "
                      f"compares rows of a group. Fix: rollout.group_size >= 2, or advantage.name=none.")
  if anchor == "behavior" and cfg.correction.level != "none":
    raise ConfigError(f"correction.level = {cfg.correction.level!r} with updates.anchor = 'behavior': the ratio "
                      "corrects for the behavior policy already, a weight would count it twice. "
                      "Fix: correction.level=none, or updates.anchor=recomputed.")
  return cfg


def load_plugins(plugins: tuple[str, ...]) -> None:
  """Import files (`experiments/idea/estimator.py`) or modules once; they register estimators and advantages."""
  for plugin in plugins:
    path = Path(plugin)
    name = "jaxrl_llm_plugin_" + "_".join(path.resolve().parts) if path.suffix == ".py" else plugin
    if name in sys.modules:
      continue
    if path.suffix == ".py":
      if not path.exists():
        raise ConfigError(f"plugins = {plugin!r}: no such file. Fix: a path from the current folder.")
      spec = importlib.util.spec_from_file_location(name, path)
      sys.modules[name] = module = importlib.util.module_from_spec(spec)
      spec.loader.exec_module(module)
    else:
      try:
        importlib.import_module(name)
      except ImportError as error:
        raise ConfigError(f"plugins = {plugin!r}: {error}. Fix: an importable module, or a .py path.") from error


def make_task(cfg: TaskConfig, seed: int, batch_size: int):
  return TASKS[cfg.name](cfg, seed, batch_size)


@dataclasses.dataclass(frozen=True)
class Parts:
  """What a run is made of. The callables are compiled on first use, each once."""

  cfg: Config
  mesh: jax.sharding.Mesh
  model: Model
  task: Any
  tx: Any
  sample: Any  # (params, prompts, key, sampling) -> Rollout, group_size rows per prompt
  sample_heldout: Any  # the same with one row per prompt
  score: Any  # (params, rollout, sampling) -> TokenStats
  score_heldout: Any
  batches: Any  # (rollout, rewards, keep, anchor_log_probs, ref_log_probs) -> ([TrainBatch], metrics)
  step: Any  # (state, batch) -> (state, metrics)
  merge: Any  # metrics of several steps -> one

  @property
  def tokenizer(self):
    return self.task.tokenizer


def build(cfg: Config, devices=None) -> Parts:
  """Parts for a resolved config.

  Raises:
    ConfigError: the task does not fit the model or the row, or rows do not fit the devices.
  """
  mesh = parallel.make_mesh(cfg.mesh, devices)
  parallel.check(cfg, mesh)
  task = make_task(cfg.task, cfg.seed, cfg.rollout.prompts)
  _check_task(cfg, task)
  model = Model(cfg.model, parallel.Layout(mesh))
  tx = make_optimizer(cfg.optimizer)
  sampler = SamplerConfig(cfg.rollout.group_size, cfg.rollout.max_new_tokens, cfg.rollout.window,
                          (task.tokenizer.eos_token_id,), task.tokenizer.pad_token_id)
  by_rows = functools.partial(jax.jit, out_shardings=parallel.rows(mesh))
  draw = lambda group: by_rows(functools.partial(generate, model=model,
                                                 cfg=dataclasses.replace(sampler, group_size=group)))
  scorer = lambda parts: by_rows(functools.partial(score, model=model, cfg=StepConfig(micro_batches=parts)))
  updates = cfg.updates
  return Parts(
      cfg, mesh, model, task, tx, sample=draw(cfg.rollout.group_size), sample_heldout=draw(1),
      score=scorer(updates.optimizer_batches * updates.micro_batches), score_heldout=scorer(1),
      batches=jax.jit(functools.partial(
          optimizer_batches, group_size=cfg.rollout.group_size, parts=updates.optimizer_batches,
          advantage=cfg.advantage, aggregation=cfg.aggregation, correction=cfg.correction)),
      step=make_train_step(policy_loss, model, tx, StepConfig(cfg.loss, updates.micro_batches), mesh),
      merge=jax.jit(merge_metrics))


def _check_task(cfg: Config, task) -> None:
  if task.longest_prompt() > cfg.rollout.max_prompt_tokens:
    raise ConfigError(f"rollout.max_prompt_tokens = {cfg.rollout.max_prompt_tokens}: prompts of task.name = "
                      f"{cfg.task.name!r} have up to {task.longest_prompt()} tokens. "
                      f"Fix: rollout.max_prompt_tokens >= {task.longest_prompt()}.")
  longest = task.longest_prompt() + task.longest_demonstration()
  if cfg.warm_start.steps and longest > cfg.row_length:
    raise ConfigError(f"rollout.max_new_tokens = {cfg.rollout.max_new_tokens}: a prompt with its demonstration has up "
                      f"to {longest} tokens. Fix: rollout.max_new_tokens >= "
                      f"{longest - cfg.rollout.max_prompt_tokens}, or warm_start.steps=0.")
  task.heldout(cfg.task.heldout_problems)
  if len(task.tokenizer) > cfg.model.vocab_size:
    raise ConfigError(f"model.vocab_size = {cfg.model.vocab_size}: the tokenizer has {len(task.tokenizer)} tokens. "
                      f"Fix: model.vocab_size >= {len(task.tokenizer)}.")
