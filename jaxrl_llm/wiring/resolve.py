"""A Config with every default filled in and every combination checked, before anything compiles."""

import dataclasses
import inspect
import logging
from collections.abc import Callable

from jaxrl_llm import config as config_lib
from jaxrl_llm.config import (
  DEFAULT,
  AggregationConfig,
  BatchConfig,
  Config,
  ConfigError,
  CorrectionConfig,
  KLConfig,
  LossConfig,
  StepConfig,
)
from jaxrl_llm.fields import Problems
from jaxrl_llm.objective import advantages, estimators
from jaxrl_llm.objective import correction as correction_rules
from jaxrl_llm.registry import COLUMNS, LOSS_TERMS, VOCABULARY
from jaxrl_llm.rollouts import backends, numerics, server
from jaxrl_llm.training import optimizers, transforms
from jaxrl_llm.wiring import automatic, evaluation_sets

logger = logging.getLogger(__name__)


def resolve(cfg: Config, platform: str = "") -> Config:
  """Returns the config with every default filled in and every combination checked.

  Args:
    platform: as in `automatic.chosen`.

  Raises:
    ConfigError: naming key, value, what is allowed, and a fix; of all that independent checks
      refuse.
  """
  config_lib.load_plugins(cfg.plugins)
  cfg = automatic.chosen(config_lib.fill(cfg), platform)
  checkpoint = cfg.checkpoint.filled(cfg.evaluation, cfg.task.heldout_problems)
  anchor = cfg.updates.anchor
  if anchor == DEFAULT:
    anchor = estimators.spec(cfg.estimator.name).anchor
  aggregation = cfg.aggregation
  if aggregation.name == "fixed" and aggregation.fixed_length is None:
    aggregation = AggregationConfig("fixed", cfg.rollout.max_new_tokens)
  cfg = dataclasses.replace(cfg, checkpoint=checkpoint, aggregation=aggregation,
                            updates=dataclasses.replace(cfg.updates, anchor=anchor))
  problems = Problems()
  with problems:
    config_lib.check(cfg)
  with problems:
    cfg = dataclasses.replace(cfg, rollout=numerics.resolve(cfg.rollout, cfg.model))
  checks: list[tuple] = [
      (correction_rules.check, cfg.correction),
      (_check_methods, cfg.loss, cfg.batch),
      (_check_interpolated, cfg.correction, cfg.updates.anchor, cfg.kl, cfg.step),
      (_check_parts, cfg),
      (evaluation_sets.check, cfg.evaluation),
  ]
  if cfg.server.url:
    checks.append((server.check, cfg.server, cfg.vocabulary))
  for check, *arguments in checks:
    with problems:
      check(*arguments)
  problems.refuse()
  return cfg


def warn_of_fast_rate(cfg: Config) -> None:
  """Logs a warning of a learning rate that a checkpoint does not survive."""
  if warning := automatic.fast_rate(cfg):
    logger.warning("%s", warning)


def warn_of_off_policy_data(cfg: Config) -> None:
  """Logs a warning where `reinforce`, which has no ratio, would train on another policy's rows.

  A correction weighs the rows of an older sampler, so that staleness is then no reason; what the
  policy moves between the optimizer batches is weighed by nothing.
  """
  u = cfg.updates
  stale = u.staleness > 0 and cfg.correction.level == "none"
  causes = {f"updates.optimizer_batches = {u.optimizer_batches}": u.optimizer_batches > 1,
            f"updates.staleness = {u.staleness}": stale,
            f"updates.replay = {u.replay}": u.replay > 0 and cfg.correction.level == "none",
            "updates.in_flight = True": u.in_flight and cfg.correction.level == "none",
            f"transform.name = {cfg.transform.name!r}": any(
                x.off_policy for x in transforms.active(cfg.step).values())}
  reasons = [cause for cause, holds in causes.items() if holds]
  if cfg.estimator.name == "reinforce" and reasons:
    logger.warning(
        "estimator.name = 'reinforce' with %s: it has no ratio, so rows of an earlier policy count "
        "as the current one's, and the gradient is biased. Fix: updates.optimizer_batches=1 "
        "without staleness or such a transform, or an estimator with a ratio, such as ppo, cispo "
        "or seq_is.",
        " and ".join(reasons))


def _check_interpolated(correction: CorrectionConfig, anchor: str, kl: KLConfig,
                        step: StepConfig) -> None:
  """Checks an interpolated anchor: it exists only in the loss, and counts policies by their
  updates.
  """
  stepping = [name for name, x in transforms.active(step).items() if x.recomputes_anchor]
  conflicts = {"correction.batch_normalize = True": correction.batch_normalize,
               "kl.place = 'reward'": kl.coef and kl.place == "reward",
               f"transform.name with {', '.join(stepping)}": stepping}
  reasons = [key for key, holds in conflicts.items() if holds]
  if reasons and anchor == "interpolated":
    raise ConfigError(
        f"{' and '.join(reasons)} with updates.anchor = 'interpolated': it needs the anchor of all "
        "completions before the updates, and this one is made anew in each. Fix: "
        "updates.anchor=recomputed, or remove it.")


def _check_methods(loss: LossConfig, batch: BatchConfig) -> None:
  """Traces methods of plugins on small arrays; raises as `plugin_checks.check_objective`."""
  methods = [choice.table[choice.name]
             for choice in (loss.estimator, batch.advantage, batch.aggregation)]
  methods += [VOCABULARY[rule] for rule in loss.rules]
  if any(method.of_plugin for method in methods) or loss.term is not None:
    from jaxrl_llm.objective.plugin_checks import check_objective
    check_objective(loss, batch)


def _check_parts(cfg: Config) -> None:
  """Runs the config checks of columns, loss terms, update transforms and optimizers.

  The parameters of their checks name what they get: sections, or the key that asks for them.
  """
  def refuse(check: Callable[..., None] | None, **keys) -> None:
    names = [] if check is None else list(inspect.signature(check).parameters)
    if unknown := [name for name in names if name not in keys and not hasattr(cfg, name)]:
      choices = [*keys, *(field.name for field in dataclasses.fields(cfg)), "loss", "step", "batch"]
      raise ConfigError(f"the check of {check.__module__} has the parameters {', '.join(unknown)}: "
                        f"allowed are {', '.join(choices)}. Fix: the sections that it reads.")
    if check is not None:
      check(**{name: keys[name] if name in keys else getattr(cfg, name) for name in names})

  needs = advantages.needs(cfg.advantage) - set(advantages.OPTIONAL)
  readers = [(column, f"advantage.name = {cfg.advantage.name!r}") for column in sorted(needs)]
  for name, entry in LOSS_TERMS.parts(cfg.term.name).items():
    readers += [(column, f"term.name = {name!r}") for column in sorted(entry.columns)]
  for column, reader in readers:
    refuse(COLUMNS[column].check, reader=reader)
  for name, entry in LOSS_TERMS.parts(cfg.term.name).items():
    refuse(entry.check, name=name)
  for transform in transforms.active(cfg.step).values():
    refuse(transform.check)
  optimizers.check(cfg.optimizer)
  backends.check(cfg.rollout.backend, cfg.server.url)
