"""A Config with every default filled in and every combination checked, before anything compiles."""

import dataclasses
import logging

from jaxrl_llm import config as config_lib
from jaxrl_llm.build import backends, best_checks, evaluation_sets, server_checks
from jaxrl_llm.build.method_checks import check_objective
from jaxrl_llm.config import DEFAULT, AggregationConfig, Config, ConfigError
from jaxrl_llm.objective import advantages, correction, estimators
from jaxrl_llm.registry import COLUMNS, LOSS_TERMS
from jaxrl_llm.rollouts import numerics
from jaxrl_llm.training import optimizers, transforms

logger = logging.getLogger(__name__)


def resolve(cfg: Config) -> Config:
  """The config with every default filled in and every combination checked.

  Raises:
    ConfigError: naming key, value, what is allowed, and a fix.
  """
  config_lib.load_plugins(cfg.plugins)
  cfg = config_lib.check(best_checks.filled(config_lib.fill(cfg)))
  anchor = cfg.updates.anchor
  if anchor == DEFAULT:
    anchor = estimators.spec(cfg.estimator.name).anchor
  aggregation = cfg.aggregation
  if aggregation.name == "fixed" and aggregation.fixed_length is None:
    aggregation = AggregationConfig("fixed", cfg.rollout.max_new_tokens)
  cfg = dataclasses.replace(cfg, aggregation=aggregation,
                            rollout=numerics.resolve(cfg.rollout, cfg.model),
                            updates=dataclasses.replace(cfg.updates, anchor=anchor))
  correction.check(cfg.correction)
  check_objective(cfg)
  _check_groups(cfg)
  _check_statistics(cfg)
  _check_anchor(cfg)
  _check_parts(cfg)
  _check_lengths(cfg)
  server_checks.check(cfg)
  evaluation_sets.check(cfg)
  best_checks.check(cfg)
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
            f"transform.name = {cfg.transform.name!r}": any(
                x.off_policy for x in transforms.active(cfg.step).values())}
  found = [cause for cause, holds in causes.items() if holds]
  if cfg.estimator.name == "reinforce" and found:
    logger.warning(
        "estimator.name = 'reinforce' with %s: it has no ratio, so rows of an earlier policy count "
        "as the current one's, and the gradient is biased. Fix: updates.optimizer_batches=1 "
        "without staleness or such a transform, or an estimator with a ratio, such as ppo, cispo "
        "or seq_is.",
        " and ".join(found))


def _check_groups(cfg: Config) -> None:
  """Methods that compare the rows of a group need groups of several rows."""
  name, size = cfg.advantage.name, cfg.rollout.group_size
  if advantages.spec(name).group and size < 2:
    raise ConfigError(
        f"rollout.group_size = {size}: advantage.name = {name!r} compares rows of a group. "
        "Fix: rollout.group_size >= 2, or advantage.name=none.")
  if getattr(cfg.advantage, "k", 0) >= max(size, 2):
    raise ConfigError(
        f"advantage.k = {cfg.advantage.k} with rollout.group_size = {size}: a group has not more "
        "than one set of that many rows, so every advantage would be 0. Fix: advantage.k below "
        "rollout.group_size.")
  if cfg.dynamic_sampling.enabled and size < 2:
    raise ConfigError(
        f"dynamic_sampling.enabled = True with rollout.group_size = {size}: a group of one is "
        "always constant. Fix: rollout.group_size >= 2.")


def _check_statistics(cfg: Config) -> None:
  """What an advantage reads, some other key must make the run compute."""
  needs, of = advantages.needs(cfg.advantage), f"advantage.name = {cfg.advantage.name!r}"
  for name in needs - set(advantages.OPTIONAL):
    if COLUMNS[name].check is not None:
      COLUMNS[name].check(cfg, of)
  if "reward_parts" in needs:
    raise ConfigError(
        f"{of} reads the parts of each row's reward, and a run passes on their sum only. Fix: "
        "another advantage; in Python, advantages.get_advantage takes reward_parts.")
  if "ref_log_probs" in needs and not cfg.kl.coef:
    raise ConfigError(
        f"kl.coef = {cfg.kl.coef}: {of} reads the reference's log-probs, which are computed only "
        "with a KL term. Fix: kl.coef=1e-6 or more.")


def _check_anchor(cfg: Config) -> None:
  """A correction weight corrects what a ratio to the behavior policy corrects already."""
  set_rules = [n for n in ("level", "reject") if getattr(cfg.correction, n) not in ("none", ())]
  if cfg.updates.anchor == "behavior" and set_rules:
    rule = f"correction.{set_rules[0]} = {getattr(cfg.correction, set_rules[0])!r}"
    raise ConfigError(
        f"{rule} with updates.anchor = 'behavior': the ratio corrects for the behavior policy "
        "already, a weight would count it twice. Fix: correction.level=none without reject, or "
        "updates.anchor=recomputed.")


def _check_parts(cfg: Config) -> None:
  """What loss terms, update transforms and optimizers refuse for themselves."""
  for name, entry in LOSS_TERMS.parts(cfg.term.name).items():
    for column in sorted(entry.columns):
      if COLUMNS[column].check is not None:
        COLUMNS[column].check(cfg, f"term.name = {name!r}")
    if entry.check is not None:
      entry.check(cfg, name)
  for transform in transforms.active(cfg.step).values():
    transform.check(cfg)
  optimizers.check(cfg.optimizer)
  backends.check(cfg)


def _check_lengths(cfg: Config) -> None:
  """Lengths and texts at which a completion ends."""
  buffer, limit = cfg.shaping.overlong_buffer, cfg.rollout.max_new_tokens
  if buffer >= limit:
    raise ConfigError(
        f"shaping.overlong_buffer = {buffer}: the soft penalty begins that many tokens before "
        f"rollout.max_new_tokens = {limit}. Fix: choose 0 to {limit - 1}.")
  if not all(cfg.rollout.stop_strings):
    raise ConfigError(
        f"rollout.stop_strings = {cfg.rollout.stop_strings!r}: an empty text is in every "
        "completion. Fix: remove it.")
