"""From a Config to compiled parts. Everything that can be refused is refused here or in `resolve`,
uncompiled.
"""

import dataclasses
import functools
from typing import Any

import jax

from jaxrl_llm import parallel
from jaxrl_llm.config import Config, ConfigError, StepConfig, check_model, load_plugins
from jaxrl_llm.models import Model, hf_config, hf_import, trainable
from jaxrl_llm.models.safetensors_files import CheckpointError
from jaxrl_llm.objective import advantages
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.runs import samplers
from jaxrl_llm.runs.resolve import resolve
from jaxrl_llm.tasks import make_task
from jaxrl_llm.tasks.tokenizer import load_tokenizer
from jaxrl_llm.training import batches
from jaxrl_llm.training.meter import meter
from jaxrl_llm.training.score import score
from jaxrl_llm.training.train_step import make_optimizer, make_train_step
from jaxrl_llm.types import Sampling, merge_metrics

__all__ = ["Parts", "build", "load_plugins", "resolve"]


@dataclasses.dataclass(frozen=True)
class Parts:
  """What a run is made of. The callables are compiled on first use, each once."""

  cfg: Config
  mesh: jax.sharding.Mesh
  model: Model
  task: Any
  tx: Any
  sampling: Sampling  # what the rollouts are drawn with
  scoring: Sampling  # what they are scored with: the same, unless vocabulary.side sets them apart
  # what ends turns, shared by both samplers: tools or stop strings; None without either
  environment: Any
  # parameters -> those that `sample` reads, once for all its calls: rounded, where others draw
  to_sampler: Any
  # (those, prompts, key, sampling) -> (Rollout, host metrics), group_size rows per prompt
  sample: Any
  sample_heldout: Any  # (params, prompts, key, sampling) -> Rollout, one row per prompt
  score: Any  # (params, rollout, sampling) -> TokenStats with what the anchor's readers need
  score_reference: Any  # the same with log-probs alone
  score_heldout: Any
  # (params, rollout, scoring) -> the mismatch meter's metrics; None where `rollout.meter_rows` is 0
  meter: Any
  merged: Any  # state -> the parameters that the model reads
  batches: Any  # (rollout, rewards, keep, scores) -> ([TrainBatch], metrics)
  replayed: Any  # (rollout, rewards, keep, scores) -> the whole batch for PIPO's extra step
  step: Any  # (state, batch) -> (state, metrics)
  replay_step: Any  # `step` for PIPO's whole batch, compiled only where PIPO runs
  merge: Any  # metrics of several steps -> one
  # where `sample` runs: `mesh`, unless mesh.rollout sets devices apart
  rollout_mesh: jax.sharding.Mesh

  @property
  def tokenizer(self):
    return self.task.tokenizer

  def close(self) -> None:
    """Ends the tool's processes. Idempotent; nothing else is held."""
    if self.environment is not None:
      self.environment.close()


def build(cfg: Config, devices=None) -> Parts:
  """Parts for a resolved config, for the caller to close.

  Raises:
    ConfigError: the task does not fit the model or the row, rows do not fit the devices, or the
    tool does not start.
  """
  mesh = parallel.make_mesh(cfg.mesh, devices)
  drawing = parallel.rollout_mesh(cfg.mesh, mesh, devices)
  parallel.check(cfg, mesh, drawing)
  model = dataclasses.replace(cfg.model, value_head=cfg.has_critic)
  cfg, tokenizer = _from_checkpoint(dataclasses.replace(cfg, model=model))
  task = make_task(cfg.task, cfg.seed, cfg.rollout.prompts, tokenizer=tokenizer, limits=cfg.rollout)
  _check_task(cfg, task)
  origin = str(hf_import.local_directory(cfg.pretrained)) if cfg.pretrained else None
  model = Model(cfg.model, parallel.Layout(mesh), origin)
  trainable.check(cfg.parameters, model)
  tx = make_optimizer(cfg.optimizer)
  loss = dataclasses.replace(cfg.loss, stop_ids=task.stop_ids)
  by_rows = functools.partial(jax.jit, out_shardings=parallel.rows(mesh))
  scorer = lambda parts, rules, stats=frozenset(): by_rows(functools.partial(
      score, model=model, cfg=StepConfig(loss, parts), stats=stats, rules=frozenset(rules)))
  environment = samplers.make_run_environment(cfg, task)
  updates, pieces = cfg.updates, cfg.updates.optimizer_batches * cfg.updates.micro_batches
  step = lambda pieces: make_train_step(policy_loss, model, tx,
                                        StepConfig(loss, pieces, cfg.parameters), mesh)
  return Parts(
      cfg, mesh, model, task, tx, sampling=_sampling(cfg,
                                                     "sampler"), scoring=_sampling(cfg, "trainer"),
      environment=environment, to_sampler=samplers.sampler_parameters(cfg, model, mesh, drawing),
      sample=samplers.training_sampler(cfg, model, task, environment, mesh,
                                       drawing), rollout_mesh=drawing,
      sample_heldout=samplers.heldout_sampler(cfg, model, task, environment,
                                              mesh), score=scorer(pieces, loss.rules,
                                                                  scored_stats(cfg)),
      score_reference=scorer(pieces, loss.rules), score_heldout=scorer(1, ()), meter=_meter(
          cfg, mesh,
          functools.partial(score, model=model, cfg=StepConfig(loss), rules=frozenset(loss.rules),
                            stats=scored_stats(cfg) & {"in_support"})),
      merged=trainable.make_merge(model, cfg.parameters, mesh),
      batches=jax.jit(functools.partial(batches.optimizer_batches, cfg=cfg.batch),
                      out_shardings=(parallel.rows(mesh), parallel.replicated(mesh))),
      replayed=by_rows(functools.partial(batches.replayed_batch, cfg=cfg.batch)),
      step=step(updates.micro_batches), replay_step=step(pieces), merge=jax.jit(merge_metrics))


def _meter(cfg: Config, mesh, scorer):
  """The pass over a few rows, as many as divide over the devices; None where the meter is off."""
  if not cfg.rollout.meter_rows:
    return None
  shards = mesh.shape["data"] * mesh.shape["fsdp"]
  rows = min(-(-cfg.rollout.meter_rows // shards) * shards, cfg.rows)
  return jax.jit(functools.partial(meter, scorer=scorer, rows=rows))


def _sampling(cfg: Config, side: str) -> Sampling:
  rules = cfg.vocabulary.rules if cfg.vocabulary.side in ("both", side) else {}
  return Sampling.of(cfg.rollout.temperature, **rules)


def scored_stats(cfg: Config) -> frozenset[str]:
  """Statistics that the anchor's pass must find beside the log-probs: only what is read."""
  wanted = advantages.needs(cfg.advantage) & {"sum_pi_squared", "values"}
  restricted = cfg.loss.rules or cfg.rollout.min_new_tokens
  return frozenset(wanted) | ({"in_support"} if restricted else frozenset())


def _from_checkpoint(cfg: Config) -> tuple[Config, Any]:
  """The config with the checkpoint's model shapes, and its tokenizer (None without a checkpoint).
  """
  if not cfg.pretrained:
    return cfg, None
  ours = cfg.model
  try:
    directory = hf_import.local_directory(cfg.pretrained)
    shapes = hf_config.read_config(directory)
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"pretrained = {cfg.pretrained!r}: {error}") from error
  model = dataclasses.replace(shapes, value_head=ours.value_head, scan_layers=ours.scan_layers,
                              remat=ours.remat, compute_dtype=ours.compute_dtype)
  check_model(model)
  return dataclasses.replace(cfg, model=model), load_tokenizer(directory)


def _check_task(cfg: Config, task) -> None:
  if task.longest_prompt() > cfg.rollout.max_prompt_tokens:
    raise ConfigError(
        f"rollout.max_prompt_tokens = {cfg.rollout.max_prompt_tokens}: prompts of task.name = "
        f"{cfg.task.name!r} have up to {task.longest_prompt()} tokens. "
        f"Fix: rollout.max_prompt_tokens >= {task.longest_prompt()}.")
  if cfg.rollout.max_turns and task.tool is None:
    raise ConfigError(
        f"rollout.max_turns = {cfg.rollout.max_turns}: task.name = {cfg.task.name!r} has no tool. "
        "Fix: rollout.max_turns=0, or task.name=tool_arithmetic.")
  if cfg.warm_start.steps and not task.has_demonstrations:
    raise ConfigError(
        f"warm_start.steps = {cfg.warm_start.steps}: task.name = {cfg.task.name!r} has no "
        "demonstrations to imitate. Fix: warm_start.steps=0.")
  longest = task.longest_prompt() + task.longest_demonstration() if cfg.warm_start.steps else 0
  if longest > cfg.row_length:
    raise ConfigError(
        f"rollout.max_new_tokens = {cfg.rollout.max_new_tokens}: a prompt with its demonstration "
        "has up "
        f"to {longest} tokens. Fix: rollout.max_new_tokens >= "
        f"{longest - cfg.rollout.max_prompt_tokens}, or warm_start.steps=0.")
  task.heldout(cfg.task.heldout_problems)
  if len(task.tokenizer) > cfg.model.vocab_size:
    raise ConfigError(
        f"model.vocab_size = {cfg.model.vocab_size}: the tokenizer has {len(task.tokenizer)} "
        "tokens. "
        f"Fix: model.vocab_size >= {len(task.tokenizer)}.")
