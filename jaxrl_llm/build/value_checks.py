"""Checks of values that depend on each other."""

import dataclasses
import math

from jaxrl_llm.config import (
  Config,
  ConfigError,
  EvaluationSetConfig,
  RolloutConfig,
  UpdateConfig,
  check_model,
)
from jaxrl_llm.fields import Problems, options, unread
from jaxrl_llm.registry import Choice


def check(cfg: Config) -> Config:
  """Returns `cfg` if its values fit together and every key that was set is read.

  Raises:
    ConfigError: names the keys, their values, and a change that works.
  """
  problems = Problems()
  for prefix, section in _sections(cfg, ""):
    for _, message in unread(section, prefix, cfg):
      problems.add(ConfigError(message))
  with problems:
    check_model(cfg.model)
  if any(not 1 <= iteration <= cfg.iterations for iteration in cfg.profile):
    problems.add(ConfigError(
        f"profile = {cfg.profile}: iterations of this run are 1 to {cfg.iterations}. Fix: choose "
        "among them, such as --config.profile=3,4."))
  with problems:
    _check_batches(cfg.rollout, cfg.updates)
  if cfg.updates.in_flight and cfg.rollout.max_turns and cfg.rollout.tool_chunks is None:
    problems.add(ConfigError(
        "rollout.tool_chunks = None with updates.in_flight = True: which groups end first would "
        "depend on the tool's speed, and a run could not be resumed. Fix: rollout.tool_chunks=1."))
  with problems:
    _check_row(cfg.rollout, cfg.mesh.sequence, cfg.updates.token_budget, cfg.bin_tokens)
  for name, section in cfg.evaluation.sets:
    with problems:
      _check_set(name, section, cfg.evaluation.samples)
  w = cfg.warm_start
  if w.batch_size % w.micro_batches:
    problems.add(ConfigError(
        f"warm_start.micro_batches = {w.micro_batches} does not divide warm_start.batch_size = "
        f"{w.batch_size}. Fix: choose among {_divisors(w.batch_size)}."))
  problems.refuse()
  return cfg


def _check_batches(r: RolloutConfig, u: UpdateConfig) -> None:
  """Refuses optimizer batches that split a group, and micro-batches that split a row."""
  if r.prompts % u.optimizer_batches:
    raise ConfigError(
        f"updates.optimizer_batches = {u.optimizer_batches} splits a group: rollout.prompts = "
        f"{r.prompts} groups of rollout.group_size = {r.group_size} rows do not divide into "
        f"{u.optimizer_batches} batches of whole groups. Fix: choose among {_divisors(r.prompts)}.")
  rows = r.rows // u.optimizer_batches
  if rows % u.micro_batches:
    raise ConfigError(
        f"updates.micro_batches = {u.micro_batches} does not divide the {rows} rows of an "
        f"optimizer batch. Fix: choose among {_divisors(rows)}.")


def _check_row(r: RolloutConfig, shards: int, budget: int, bin_tokens: int) -> None:
  """Refuses lengths of a completion, of a shard and of a bin that do not fit a row.

  Args:
    shards: mesh.sequence.
    budget: updates.token_budget.
    bin_tokens: tokens of a bin.
  """
  if r.min_new_tokens > r.max_new_tokens:
    raise ConfigError(
        f"rollout.min_new_tokens = {r.min_new_tokens}: a completion ends at rollout.max_new_tokens "
        f"= {r.max_new_tokens}. Fix: choose 0 to {r.max_new_tokens}.")
  if r.row_length % shards:
    raise ConfigError(
        f"mesh.sequence = {shards} does not divide the {r.row_length} tokens of "
        "rollout.max_prompt_tokens + rollout.max_new_tokens. Fix: rollout.max_prompt_tokens="
        f"{r.max_prompt_tokens + -r.row_length % shards}.")
  if 0 < budget < bin_tokens:  # a bin is larger only where that is within the budget
    raise ConfigError(
        f"updates.token_budget = {budget}: a row of rollout.max_prompt_tokens + "
        f"rollout.max_new_tokens needs {bin_tokens}. Fix: 0, which packs nothing, or "
        f"{bin_tokens} or more.")


def _check_set(name: str, section: EvaluationSetConfig, default_samples: int) -> None:
  """Refuses a temperature for a set without sampled completions."""
  samples = default_samples if section.samples is None else section.samples
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
