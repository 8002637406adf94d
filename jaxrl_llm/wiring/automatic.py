"""Values of the keys that say `auto`: by the checkpoint, the parameters that are trained, the data
and the device.

They are chosen once, at the start, and the run's config.json has them as numbers. What changes
memory and speed only was chosen by measurement on two cores of a CPU (SmolLM2-135M, 8 x 8
completions of 24 tokens: packed rows with shared prompts need a quarter to a half of padded ones'
time); the values for accelerators are ours, not measured.
"""

import dataclasses
import functools
import logging

import jax
from transformers import PreTrainedTokenizerBase

from jaxrl_llm.config import Config, ConfigError
from jaxrl_llm.fields import AUTO, options
from jaxrl_llm.models import CheckpointError, hf
from jaxrl_llm.tasks import make_task
from jaxrl_llm.tasks.tokenizer import load_tokenizer

# Learning rates of a checkpoint by parameters.train: what `auto` is, and what is no longer usual.
# At 3e-4 for all parameters, one update left SmolLM2-135M-Instruct without a word; 1e-5 taught it.
RATES = {"all": (1e-6, 1e-5), "selected": (1e-6, 1e-5), "lora": (5e-5, 5e-4)}
FRESH_RATE, FRESH_STEPS = 3e-4, 200  # of a network that begins with random weights
PROMPT_TILE, LONGEST = 16, 1024  # tokens
BUDGETS = {"cpu": 1024}  # tokens of a micro-batch by platform
BUDGET = 8192  # of the others
UNKNOWN = 64  # tokens of prompts in a file that cannot be read, which another message says


def chosen(cfg: Config, platform: str = "") -> Config:
  """Returns the config with a value in place of each `auto`.

  Args:
    cfg: with every number of each chosen method.
    platform: of the devices, such as tpu; empty: JAX's default one.

  Raises:
    ConfigError: the checkpoint or its tokenizer cannot be read.
  """
  keys = automatic_keys(cfg)
  if not keys:
    return cfg
  platform, has_checkpoint = platform or jax.default_backend(), bool(cfg.pretrained)
  fast = has_checkpoint and platform != "cpu"
  values = {
      "optimizer.learning_rate": RATES[cfg.parameters.train][0] if has_checkpoint else FRESH_RATE,
      "warm_start.steps": 0 if has_checkpoint else FRESH_STEPS,
      "model.compute_dtype": "bfloat16" if fast else "float32",
      "model.remat": "full" if fast else "none",
      "model.scan_layers": has_checkpoint,
      "updates.shared_prompts": has_checkpoint,
  }
  cfg = _with(cfg, {key: values[key] for key in keys if key in values})
  if {"task.prompt.style", "rollout.max_prompt_tokens"} & set(keys):
    cfg = _of_prompts(cfg, keys)
  if "updates.token_budget" in keys:
    budget = BUDGETS.get(platform, BUDGET) if has_checkpoint else 0
    cfg = _with(cfg, {"updates.token_budget": budget})
    cfg = _with(cfg, {"updates.token_budget": max(budget, cfg.bin_tokens) if budget else 0})
  return cfg


def _of_prompts(cfg: Config, keys: list[str]) -> Config:
  """Returns the config with the prompts' style and length."""
  tokenizer = _tokenizer_of(cfg.pretrained) if cfg.pretrained else None
  if "task.prompt.style" in keys:
    style = "chat" if getattr(tokenizer, "chat_template", None) else "plain"
    cfg = _with(cfg, {"task.prompt.style": style})
  if "rollout.max_prompt_tokens" in keys:
    tiles = -(-_longest_prompt(cfg, tokenizer) // PROMPT_TILE)
    cfg = _with(cfg, {"rollout.max_prompt_tokens": min(tiles * PROMPT_TILE, LONGEST)})
  return cfg


def _tokenizer_of(checkpoint: str) -> PreTrainedTokenizerBase:
  """Returns the tokenizer of a checkpoint.

  Raises:
    ConfigError: the checkpoint or its tokenizer cannot be read.
  """
  try:
    return load_tokenizer(hf.base_directory(checkpoint))
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"pretrained = {checkpoint!r}: {error}") from error


def _longest_prompt(cfg: Config, tokenizer) -> int:
  """Returns the tokens of the longest prompt of the task, without regard to the row's."""
  log = logging.getLogger("jaxrl_llm.tasks")
  level = log.level
  log.setLevel(logging.ERROR)  # the run's own task says the same once more
  try:
    return make_task(cfg.task, cfg.seed, 1, tokenizer=tokenizer).longest_prompt()
  except ConfigError:
    return UNKNOWN
  finally:
    log.setLevel(level)


def automatic_keys(cfg) -> list[str]:
  """Returns the keys of a config whose value is `auto`, to be chosen."""
  return [f"{name}.{key}" for name, section in _sections(cfg)
          for key, field in options(type(section)).items()
          if field.metadata.get("auto") and getattr(section, key) == AUTO]


def line(cfg: Config, final: Config) -> str:
  """Returns what `final` has in place of each `auto` of `cfg`, as flags that would choose the same;
  empty: there is none.
  """
  flags = [f"{key}={_value(final, key)}" for key in automatic_keys(cfg)]
  return "" if not flags else f"auto: {' '.join(flags)} (--config.<key>=<value> overrides)"


def fast_rate(cfg: Config) -> str:
  """Returns what is wrong with a learning rate that a checkpoint does not survive; empty: nothing
  is known to be, as of optimizers whose rates have another scale.
  """
  rate, (usual, highest) = cfg.optimizer.learning_rate, RATES[cfg.parameters.train]
  if not cfg.pretrained or cfg.optimizer.name != "adamw" or rate <= highest:
    return ""
  what = {"all": "all parameters", "lora": "adapters"}.get(cfg.parameters.train, "parameters")
  return (f"optimizer.learning_rate = {rate:g} for {what} of a checkpoint: a few such updates "
          f"can destroy it. Fix: optimizer.learning_rate={usual:g}, or up to {highest:g}")


def _sections(cfg):
  """Yields (name, section) of the config's sections and of the task's prompt."""
  names = [field.name for field in dataclasses.fields(cfg)]
  for name, section in ((name, getattr(cfg, name)) for name in names):
    if dataclasses.is_dataclass(section):
      yield name, section
  yield "task.prompt", cfg.task.prompt


def _with(cfg, values: dict):
  """Returns the config with other values, by their full keys."""
  for key, value in values.items():
    cfg = _replaced(cfg, key.split("."), value)
  return cfg


def _replaced(section, path: list[str], value):
  if len(path) > 1:
    value = _replaced(getattr(section, path[0]), path[1:], value)
  return dataclasses.replace(section, **{path[0]: value})


def _value(cfg, key: str):
  return functools.reduce(getattr, key.split("."), cfg)
