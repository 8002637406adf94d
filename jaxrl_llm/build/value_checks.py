"""Checks of values that depend on each other."""

import dataclasses
import math

from jaxrl_llm.config import Config, ConfigError, EvaluationConfig, check_model
from jaxrl_llm.fields import options, refuse_unread
from jaxrl_llm.registry import Choice


def check(cfg: Config) -> Config:
  """Returns `cfg` if its values fit together and every key that was set is read.

  Raises:
    ConfigError: names the keys, their values, and a change that works.
  """
  for prefix, section in _sections(cfg, ""):
    refuse_unread(section, prefix, cfg)
  check_model(cfg.model)
  if any(not 1 <= iteration <= cfg.iterations for iteration in cfg.profile):
    raise ConfigError(
        f"profile = {cfg.profile}: iterations of this run are 1 to {cfg.iterations}. Fix: choose "
        "among them, such as --config.profile=3,4.")
  r, u = cfg.rollout, cfg.updates
  if r.prompts % u.optimizer_batches:
    raise ConfigError(
        f"updates.optimizer_batches = {u.optimizer_batches} splits a group: rollout.prompts = "
        f"{r.prompts} groups of rollout.group_size = {r.group_size} rows do not divide into "
        f"{u.optimizer_batches} batches of whole groups. Fix: choose among {_divisors(r.prompts)}.")
  if r.min_new_tokens > r.max_new_tokens:
    raise ConfigError(
        f"rollout.min_new_tokens = {r.min_new_tokens}: a completion ends at rollout.max_new_tokens "
        f"= {r.max_new_tokens}. Fix: choose 0 to {r.max_new_tokens}.")
  rows = cfg.rows // u.optimizer_batches
  if rows % u.micro_batches:
    raise ConfigError(
        f"updates.micro_batches = {u.micro_batches} does not divide the {rows} rows of an "
        f"optimizer batch. Fix: choose among {_divisors(rows)}.")
  if cfg.row_length % cfg.mesh.sequence:
    raise ConfigError(
        f"mesh.sequence = {cfg.mesh.sequence} does not divide the {cfg.row_length} tokens of "
        "rollout.max_prompt_tokens + rollout.max_new_tokens. Fix: rollout.max_prompt_tokens="
        f"{r.max_prompt_tokens + -cfg.row_length % cfg.mesh.sequence}.")
  if 0 < u.token_budget < cfg.bin_tokens:  # a bin is larger only where that is within the budget
    raise ConfigError(
        f"updates.token_budget = {u.token_budget}: a row of rollout.max_prompt_tokens + "
        f"rollout.max_new_tokens needs {cfg.bin_tokens}. Fix: 0, which packs nothing, or "
        f"{cfg.bin_tokens} or more.")
  _check_evaluation(cfg.evaluation)
  w = cfg.warm_start
  if w.batch_size % w.micro_batches:
    raise ConfigError(
        f"warm_start.micro_batches = {w.micro_batches} does not divide warm_start.batch_size = "
        f"{w.batch_size}. Fix: choose among {_divisors(w.batch_size)}.")
  return cfg


def _check_evaluation(cfg: EvaluationConfig) -> None:
  """Refuses a temperature of a set of which no completion is sampled."""
  for name, section in cfg.sets:
    samples = cfg.samples if section.samples is None else section.samples
    if section.temperature is not None and not samples:
      raise ConfigError(
          f"evaluation.sets.{name}.temperature = {section.temperature}: no completion of the set "
          f"is sampled. Fix: evaluation.sets.{name}.samples, or remove it.")


def _sections(section, prefix: str):
  """Yields (prefix, section) for a section, the sections within it, and numbers of methods."""
  yield prefix, section
  for name, field in options(type(section)).items():
    inner = getattr(section, name)
    if "sections" in field.metadata:
      for key, subsection in inner:
        yield from _sections(subsection, f"{prefix}{name}.{key}.")
    elif dataclasses.is_dataclass(inner):
      yield from _sections(inner, f"{prefix}{name}.")
  if isinstance(section, Choice):
    yield from _sections(section.table.numbers(section), prefix)


def _divisors(n: int) -> str:
  small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
  return ", ".join(map(str, sorted({*small, *(n // k for k in small)})))
