"""Parameters and the parts to sample them with, for a benchmark: of a run, or of a directory."""

import dataclasses
from pathlib import Path
from typing import Any

from experiments.commands import saved
from jaxrl_llm.config import Config, ParametersConfig, WarmStartConfig, to_dict, without_unread
from jaxrl_llm.models import hf
from jaxrl_llm.types import Params
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.setup import Built


def load_run(folder: str | Path, checkpoint: str | int = "latest", override: Config | None = None,
             devices=None, plugins: str = "") -> tuple[Built, Params]:
  """Returns (built, parameters) of a run's checkpoint. The caller closes the sampler.

  Args:
    override: its task, evaluation sets, mesh, and lengths of prompts and completions replace the
      run's; None: all as in the run.
    devices: as `setup.build`.
    plugins: as `saved.read_config`.

  Raises:
    ConfigError: no run, other plugins, no such checkpoint, or a task that does not fit the model.
    TornCheckpointsError: the checkpoint cannot be read.
  """
  cfg, run_devices = saved.read_config(folder, devices, plugins)
  if override is None:
    built = setup.build(cfg, run_devices, training=False)
  else:
    lengths = {name: getattr(override.rollout, name)
               for name in ("max_prompt_tokens", "max_new_tokens", "window")}
    rollout = dataclasses.replace(cfg.rollout, **lengths)
    changed = dataclasses.replace(cfg, task=override.task, mesh=override.mesh, rollout=rollout,
                                  evaluation=override.evaluation)
    built = _build(changed, devices)
  return built, saved.restore_trained(built.cfg, built.learner, folder, checkpoint)[1]


def load_directory(path: str | Path, cfg: Config, devices=None) -> tuple[Built, Params]:
  """Returns (built, parameters) of a Hugging Face directory, in its own dtype, for the task of
  `cfg`. The caller closes the sampler.

  Raises:
    ConfigError: the task does not fit the model.
    CheckpointError: the directory cannot be read.
  """
  changed = dataclasses.replace(cfg, pretrained=str(path), parameters=ParametersConfig())
  built = _build(without_unread(changed), devices)  # the directory sets the model's shapes
  return built, hf.load_pretrained(path, mesh=built.learner.mesh)[1]


def _build(cfg: Config, devices=None) -> Built:
  """Calls `setup.build` without what only training reads: a warm start, whose demonstrations the
  task may lack, and the choice of the best checkpoint, whose metric may belong to another set.
  """
  changed = dataclasses.replace(
      cfg,
      warm_start=WarmStartConfig(),
      checkpoint=dataclasses.replace(cfg.checkpoint, best="none"),
      evaluation=dataclasses.replace(cfg.evaluation, patience=0),
      updates=dataclasses.replace(cfg.updates, overlap=False),
  )
  return setup.build(setup.resolve(changed), devices, training=False)


def described(cfg: Config) -> dict[str, Any]:
  """Returns the part of a config on which evaluation samples depend, without the sets; JSON-able.
  """
  return {
      "reward": to_dict(cfg.reward),
      "tool": to_dict(cfg.tool),
      "environment": to_dict(cfg.environment),
      "compute_dtype": cfg.model.compute_dtype,
  }
