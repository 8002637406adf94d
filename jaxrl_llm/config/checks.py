"""Checks of values that depend on each other, and the rule for keys that nothing reads."""

import dataclasses

from jaxrl_llm.config.model import check_model
from jaxrl_llm.config.sections import Config
from jaxrl_llm.fields import ConfigError, options, refuse_unread, unread
from jaxrl_llm.registry import Choice


def fill(cfg: Config) -> Config:
  """Returns the config with every number of each chosen method, by default the method's own.

  Raises:
    ConfigError: an unknown method, or a hyperparameter that the method does not read.
  """
  chosen = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)
            if isinstance(getattr(cfg, f.name), Choice)}
  return dataclasses.replace(cfg, **{name: choice.table.filled(choice)
                                     for name, choice in chosen.items()})


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
  _check_evaluation(cfg)
  w = cfg.warm_start
  if w.batch_size % w.micro_batches:
    raise ConfigError(
        f"warm_start.micro_batches = {w.micro_batches} does not divide warm_start.batch_size = "
        f"{w.batch_size}. Fix: choose among {_divisors(w.batch_size)}.")
  return cfg


def _check_evaluation(cfg: Config) -> None:
  """Refuses a temperature of a set of which no completion is sampled."""
  for name, set_cfg in cfg.evaluation.sets:
    samples = cfg.evaluation.samples if set_cfg.samples is None else set_cfg.samples
    if set_cfg.temperature is not None and not samples:
      raise ConfigError(
          f"evaluation.sets.{name}.temperature = {set_cfg.temperature}: no completion of the set "
          f"is "
          f"sampled. Fix: evaluation.sets.{name}.samples, or remove it.")


def without_unread(cfg: Config) -> Config:
  """Returns the config with every option that nothing reads set to its default."""
  return _restored(cfg, cfg, "")


def _restored(section, root: Config, prefix: str):
  """Returns `without_unread` of a section whose keys begin with `prefix`."""
  names = {name for name, _ in unread(section, prefix, root)}
  changed = {f.name: f.default for f in dataclasses.fields(section) if f.name in names}
  for name, field in options(type(section)).items():
    inner = getattr(section, name)
    if "sections" in field.metadata:
      changed[name] = tuple((key, _restored(subsection, root, f"{prefix}{name}.{key}."))
                            for key, subsection in inner)
    elif dataclasses.is_dataclass(inner):
      changed[name] = _restored(inner, root, f"{prefix}{name}.")
  if isinstance(section, Choice):
    numbers = _restored(section.table.numbers(section), root, prefix)
    changed |= {key: getattr(numbers, key) for key, _ in section.given}
  return dataclasses.replace(section, **changed)


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
  return ", ".join(str(k) for k in range(1, n + 1) if n % k == 0)
