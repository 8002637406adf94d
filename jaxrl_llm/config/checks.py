"""Checks on values taken together; the registries add theirs in `runs/resolve.py`."""

from jaxrl_llm.config.model import check_model
from jaxrl_llm.config.sections import Config
from jaxrl_llm.fields import ConfigError


def check(cfg: Config) -> Config:
  """Checks on values taken together; the registries add theirs in `runs/resolve.py`.

  Raises:
    ConfigError: naming the keys, their values, and a change that works.
  """
  check_model(cfg.model)
  r, u = cfg.rollout, cfg.updates
  if r.prompts % u.optimizer_batches:
    raise ConfigError(
        f"updates.optimizer_batches = {u.optimizer_batches} splits a group: rollout.prompts = "
        f"{r.prompts} groups of "
        f"rollout.group_size = {r.group_size} rows do not divide into {u.optimizer_batches} "
        "batches of whole groups. "
        f"Fix: choose among {_divisors(r.prompts)}.")
  if r.min_new_tokens > r.max_new_tokens:
    raise ConfigError(
        f"rollout.min_new_tokens = {r.min_new_tokens}: a completion ends at rollout.max_new_tokens "
        "= "
        f"{r.max_new_tokens}. Fix: choose 0 to {r.max_new_tokens}.")
  rows = cfg.rows // u.optimizer_batches
  if rows % u.micro_batches:
    raise ConfigError(
        f"updates.micro_batches = {u.micro_batches} does not divide the {rows} rows of an "
        "optimizer "
        f"batch. Fix: choose among {_divisors(rows)}.")
  w = cfg.warm_start
  if w.batch_size % w.micro_batches:
    raise ConfigError(
        f"warm_start.micro_batches = {w.micro_batches} does not divide warm_start.batch_size = "
        f"{w.batch_size}. Fix: choose among {_divisors(w.batch_size)}.")
  return cfg


def _divisors(n: int) -> str:
  return ", ".join(str(k) for k in range(1, n + 1) if n % k == 0)
