"""A Config with every default filled in and every combination checked, before anything compiles."""

import dataclasses
import inspect
import logging
from collections.abc import Callable

from jaxrl_llm import config as config_lib
from jaxrl_llm.build import (
  backends,
  best_checks,
  evaluation_sets,
  server_checks,
  value_checks,
)
from jaxrl_llm.build.checkpoint_shapes import shapes_of
from jaxrl_llm.build.method_checks import check_objective
from jaxrl_llm.build.task_setup import TaskSections, checked_task
from jaxrl_llm.config import (
  DEFAULT,
  AdvantageConfig,
  AggregationConfig,
  Config,
  ConfigError,
  CorrectionConfig,
  KLConfig,
  RolloutConfig,
  ShapingConfig,
  StepConfig,
)
from jaxrl_llm.fields import Problems
from jaxrl_llm.objective import advantages, estimators
from jaxrl_llm.objective import correction as correction_rules
from jaxrl_llm.registry import COLUMNS, LOSS_TERMS
from jaxrl_llm.rollouts import numerics
from jaxrl_llm.training import optimizers, transforms

logger = logging.getLogger(__name__)


def resolve(cfg: Config) -> Config:
  """Returns the config with every default filled in and every combination checked.

  Raises:
    ConfigError: naming key, value, what is allowed, and a fix; of all that independent checks
      refuse and, for problems from a file, also of what does not fit that file.
  """
  config_lib.load_plugins(cfg.plugins)
  cfg = config_lib.fill(cfg)
  checkpoint = best_checks.filled(cfg.checkpoint, cfg.evaluation, cfg.task.heldout_problems)
  cfg, problems = dataclasses.replace(cfg, checkpoint=checkpoint), Problems()
  with problems:
    value_checks.check(cfg)
  anchor = cfg.updates.anchor
  if anchor == DEFAULT:
    anchor = estimators.spec(cfg.estimator.name).anchor
  aggregation = cfg.aggregation
  if aggregation.name == "fixed" and aggregation.fixed_length is None:
    aggregation = AggregationConfig("fixed", cfg.rollout.max_new_tokens)
  cfg = dataclasses.replace(cfg, aggregation=aggregation,
                            updates=dataclasses.replace(cfg.updates, anchor=anchor))
  with problems:
    cfg = dataclasses.replace(cfg, rollout=numerics.resolve(cfg.rollout, cfg.model))
  checks: list[tuple] = [
      (correction_rules.check, cfg.correction),
      (check_objective, cfg.loss, cfg.batch),
      (_check_groups, cfg.advantage, cfg.rollout.group_size, cfg.dynamic_sampling.enabled),
      (_check_statistics, cfg.advantage, cfg.kl.coef),
      (_check_reward_parts, cfg.advantage, cfg.shaping, cfg.task.shuffle_rewards),
      (_check_anchor, cfg.correction, cfg.updates.anchor),
      (_check_interpolated, cfg.correction, cfg.updates.anchor, cfg.kl, cfg.step),
      (_check_parts, cfg),
      (_check_lengths, cfg.shaping.overlong_buffer, cfg.rollout),
      (server_checks.check, cfg.server, cfg.rollout, cfg.vocabulary, cfg.model.compute_dtype),
      (evaluation_sets.check, cfg.evaluation),
      (best_checks.check, cfg.checkpoint.best, cfg.evaluation, cfg.task.heldout_problems,
       cfg.reward.name),
  ]
  for check, *arguments in checks:
    with problems:
      check(*arguments)
  if problems.errors and cfg.task.name == "dataset" and cfg.task.data.path:
    with problems:
      model, tokenizer = shapes_of(cfg.pretrained, cfg.model, cfg.row_length)
      sections = TaskSections.of(dataclasses.replace(cfg, model=model))
      checked_task(sections, tokenizer, problems)
  problems.refuse()
  return cfg


def warn_of_off_policy_data(cfg: Config) -> None:
  """Logs a warning where `reinforce`, which has no ratio, would train on another policy's rows.

  A correction weighs the rows of an older sampler, so that staleness is then no reason; what the
  policy moves between the optimizer batches is weighed by nothing.
  """
  u = cfg.updates
  stale = u.staleness > 0 and cfg.correction.level == "none"
  causes = {f"updates.optimizer_batches = {u.optimizer_batches}": u.optimizer_batches > 1,
            f"updates.staleness = {u.staleness}": stale,
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


def _check_groups(advantage: AdvantageConfig, size: int, dynamic_sampling: bool) -> None:
  """Refuses groups that are too small for a method that compares their rows."""
  name = advantage.name
  if advantages.spec(name).group and size < 2:
    raise ConfigError(
        f"rollout.group_size = {size}: advantage.name = {name!r} compares rows of a group. "
        "Fix: rollout.group_size >= 2, or advantage.name=none.")
  if getattr(advantage, "k", 0) >= max(size, 2):
    raise ConfigError(
        f"advantage.k = {advantage.k} with rollout.group_size = {size}: a group has not more "
        "than one set of that many rows, so every advantage would be 0. Fix: advantage.k below "
        "rollout.group_size.")
  if dynamic_sampling and size < 2:
    raise ConfigError(
        f"dynamic_sampling.enabled = True with rollout.group_size = {size}: a group of one is "
        "always constant. Fix: rollout.group_size >= 2.")


def _check_statistics(advantage: AdvantageConfig, kl_coef: float) -> None:
  """Refuses an advantage that reads statistics which no other key makes the run compute."""
  needs, reader = advantages.needs(advantage), f"advantage.name = {advantage.name!r}"
  if "ref_log_probs" in needs and not kl_coef:
    raise ConfigError(
        f"kl.coef = {kl_coef}: {reader} reads the reference's log-probs, which are computed only "
        "with a KL term. Fix: kl.coef=1e-6 or more.")


def _check_reward_parts(advantage: AdvantageConfig, shaping: ShapingConfig, shuffled: bool) -> None:
  """Refuses changes of the summed reward where the advantage reads the reward's parts."""
  changes = {f"shaping.name = {shaping.name!r}": shaping.name != "none",
             f"shaping.overlong_buffer = {shaping.overlong_buffer}": shaping.overlong_buffer > 0,
             "task.shuffle_rewards = True": shuffled}
  changing = [key for key, holds in changes.items() if holds]
  if changing and "reward_parts" in advantages.needs(advantage):
    raise ConfigError(
        f"{' and '.join(changing)} with advantage.name = {advantage.name!r}, which reads the parts "
        "of a reward: the change belongs to none of them. Fix: a component of a reward of your own "
        "instead, or another advantage.")


def _check_anchor(correction: CorrectionConfig, anchor: str) -> None:
  """Refuses a correction weight that corrects what a ratio to the behavior policy corrects already.
  """
  set_rules = [n for n in ("level", "reject") if getattr(correction, n) not in ("none", ())]
  if anchor == "behavior" and set_rules:
    rule = f"correction.{set_rules[0]} = {getattr(correction, set_rules[0])!r}"
    raise ConfigError(
        f"{rule} with updates.anchor = 'behavior': the ratio corrects for the behavior policy "
        "already, a weight would count it twice. Fix: correction.level=none without reject, or "
        "updates.anchor=recomputed.")


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


def _check_parts(cfg: Config) -> None:
  """Runs the config checks of columns, loss terms, update transforms and optimizers.

  The parameters of their checks name what they get: sections, or the key that asks for them.
  """
  def refuse(check: Callable[..., None] | None, **keys) -> None:
    names = [] if check is None else list(inspect.signature(check).parameters)
    if unknown := [name for name in names if name not in keys and not hasattr(cfg, name)]:
      allowed = [*keys, *(field.name for field in dataclasses.fields(cfg)), "loss", "step", "batch"]
      raise ConfigError(f"the check of {check.__module__} has the parameters {', '.join(unknown)}: "
                        f"allowed are {', '.join(allowed)}. Fix: the sections that it reads.")
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


def _check_lengths(buffer: int, rollout: RolloutConfig) -> None:
  """Checks the lengths and texts at which a completion ends."""
  limit = rollout.max_new_tokens
  if buffer >= limit:
    raise ConfigError(
        f"shaping.overlong_buffer = {buffer}: the soft penalty begins that many tokens before "
        f"rollout.max_new_tokens = {limit}. Fix: choose 0 to {limit - 1}.")
  if not all(rollout.stop_strings):
    raise ConfigError(
        f"rollout.stop_strings = {rollout.stop_strings!r}: an empty text is in every "
        "completion. Fix: remove it.")
