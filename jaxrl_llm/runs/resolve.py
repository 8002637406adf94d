"""A Config with every default filled in and every combination checked, before anything compiles."""

import dataclasses
import importlib
import importlib.util
import sys
from pathlib import Path

from jaxrl_llm import config as config_lib
from jaxrl_llm.config import DEFAULT, Config, ConfigError
from jaxrl_llm.objective import advantages, correction, estimators
from jaxrl_llm.rollouts import numerics


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
  cfg = dataclasses.replace(cfg, estimator=estimators.resolve(cfg.estimator),
                            aggregation=aggregation,
                            rollout=numerics.resolve(cfg.rollout, cfg.model),
                            updates=dataclasses.replace(cfg.updates, anchor=anchor),
                            model=dataclasses.replace(cfg.model, value_head=uses_critic(cfg)))
  correction.check(cfg.correction)
  _check_groups(cfg)
  _check_anchor(cfg)
  _check_rewards(cfg)
  _check_engine(cfg)
  _check_overlap(cfg)
  _check_unread(cfg)
  return cfg


def uses_critic(cfg: Config) -> bool:
  return "values" in advantages.needs(cfg.advantage)


def _check_groups(cfg: Config) -> None:
  name, size = cfg.advantage.name, cfg.rollout.group_size
  if advantages.spec(name).group and size < 2:
    raise ConfigError(
        f"rollout.group_size = {size}: advantage.name = {name!r} compares rows of a group. "
        "Fix: rollout.group_size >= 2, or advantage.name=none.")
  if cfg.dynamic_sampling.enabled and size < 2:
    raise ConfigError(
        f"dynamic_sampling.enabled = True with rollout.group_size = {size}: a group of one is "
        "always "
        "constant. Fix: rollout.group_size >= 2.")


def _check_anchor(cfg: Config) -> None:
  rule = next((f"correction.{n} = {getattr(cfg.correction, n)!r}" for n in ("level", "reject")
               if getattr(cfg.correction, n) not in ("none", ())), None)
  if cfg.updates.anchor == "behavior" and rule:
    raise ConfigError(
        f"{rule} with updates.anchor = 'behavior': the ratio corrects for the behavior policy "
        "already, "
        "a weight would count it twice. Fix: correction.level=none without reject, or "
        "updates.anchor=recomputed.")
  if cfg.pipo.enabled and estimators.spec(cfg.estimator.name).batch_statistics:
    raise ConfigError(
        f"pipo.enabled = True with estimator.name = {cfg.estimator.name!r}, whose weights are a "
        "statistic of the fresh batch. Fix: another estimator.")


def _check_rewards(cfg: Config) -> None:
  s, limit = cfg.shaping, cfg.rollout.max_new_tokens
  if s.overlong_buffer >= limit:
    raise ConfigError(
        f"shaping.overlong_buffer = {s.overlong_buffer}: the soft penalty begins that many tokens "
        "before "
        f"rollout.max_new_tokens = {limit}. Fix: choose 0 to {limit - 1}.")
  if cfg.kl.place == "reward" and cfg.kl.importance:
    raise ConfigError(
        "kl.importance = True with kl.place = 'reward': the reward is a constant, its advantage is "
        "weighed by the estimator. Fix: kl.importance=False, or kl.place=loss.")


def _check_engine(cfg: Config) -> None:
  r, default = cfg.rollout, type(cfg.rollout)()
  for switch, fields in (("slots", ("chunk", "compaction", "shared_prefix", "max_turns",
                                    "stop_strings")),
                         ("max_turns", ("max_turn_tokens", "max_tool_tokens", "tool_chunks",
                                        "tool_workers"))):
    unread = next((n for n in fields if getattr(r, n) != getattr(default, n)), None)
    if not getattr(r, switch) and unread:
      raise ConfigError(
          f"rollout.{unread} = {getattr(r, unread)!r} with rollout.{switch} = 0, which does not "
          "read it. "
          f"Fix: rollout.{switch}=1 or more, or remove it.")
  if r.stop_strings and r.max_turns:
    raise ConfigError(
        f"rollout.stop_strings = {r.stop_strings!r} with rollout.max_turns = {r.max_turns}: turns "
        "end "
        "with the tool's own notation. Fix: rollout.max_turns=0, or remove it.")
  if not all(r.stop_strings):
    raise ConfigError(
        f"rollout.stop_strings = {r.stop_strings!r}: an empty text is in every completion. "
        "Fix: remove it.")
  if cfg.vocabulary.side != "both" and not cfg.vocabulary.rules:
    raise ConfigError(
        f"vocabulary.side = {cfg.vocabulary.side!r}: nothing is pruned on either side. "
        "Fix: vocabulary.top_k, top_p or min_p, or remove it.")


def _check_overlap(cfg: Config) -> None:
  if cfg.updates.overlap and not cfg.updates.staleness:
    raise ConfigError(
        "updates.overlap = True with updates.staleness = 0: the next batch needs the parameters "
        "that "
        "this one is still training. Fix: updates.staleness=1 or more, or updates.overlap=False.")


# What only some choices read: {section: {field: the names that read it}}.
_READERS = {
    "shaping": ("name", {
        "alpha": {"grpo_lambda"},
        "fraction": {"grpo_lambda"}
    }),
    "task": ("name", {
        "num_terms": {"modular_chain"},
        "worked_share": {"modular_chain", "tool_arithmetic"}
    }),
}


def _check_unread(cfg: Config) -> None:
  """A number that nothing reads is a mistake, not a wish."""
  readers = _READERS | {"advantage": ("name", advantages.readers())}
  for section, (selector, table) in readers.items():
    part = getattr(cfg, section)
    for field, names in table.items():
      value, default = getattr(part, field), getattr(type(part)(), field)
      if value != default and getattr(part, selector) not in names:
        raise ConfigError(
            f"{section}.{field} = {value!r}: {section}.{selector} = {getattr(part, selector)!r} "
            "does not "
            f"read it; what does: {', '.join(sorted(names))}. Fix: remove it.")


def load_plugins(plugins: tuple[str, ...]) -> None:
  """Import files (`experiments/idea/estimator.py`) or modules once; they register estimators and
  advantages.
  """
  for plugin in plugins:
    path = Path(plugin)
    name = "jaxrl_llm_plugin_" + "_".join(path.resolve().parts) if path.suffix == ".py" else plugin
    if name in sys.modules:
      continue
    if path.suffix == ".py":
      if not path.exists():
        raise ConfigError(
            f"plugins = {plugin!r}: no such file. Fix: a path from the current folder.")
      spec = importlib.util.spec_from_file_location(name, path)
      sys.modules[name] = module = importlib.util.module_from_spec(spec)
      spec.loader.exec_module(module)
    else:
      try:
        importlib.import_module(name)
      except ImportError as error:
        raise ConfigError(
            f"plugins = {plugin!r}: {error}. Fix: an importable module, or a .py path.") from error
