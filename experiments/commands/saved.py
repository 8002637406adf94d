"""Parameters of a run, finished or not, read from its folder and exported. Nothing there is
changed.
"""

import dataclasses
from pathlib import Path

import jax

from experiments.commands import peft
from experiments.commands.command_flags import PLUGINS
from jaxrl_llm import parallel
from jaxrl_llm.config import (
  Config,
  ConfigError,
  ServerConfig,
  WriterConfig,
  from_saved,
  read_saved,
)
from jaxrl_llm.config.plugins import names as plugin_names
from jaxrl_llm.models import hf, trainable
from jaxrl_llm.store import checkpoints
from jaxrl_llm.store.checkpoints import BEST
from jaxrl_llm.store.folders import path_of
from jaxrl_llm.types import Params, Task
from jaxrl_llm.wiring import inputs, setup
from jaxrl_llm.wiring.learner import Learner, Start
from jaxrl_llm.wiring.warm_start import frozen_start

OF_RUN = "run"  # in --plugins: the plugins that the run's config names


def permit(content: dict, plugins: str, path: Path) -> None:
  """Refuses a run's config that names plugins which the flag --plugins does not name.

  To import a plugin is to run its code, and a run's folder may come from elsewhere. Those that
  flags bring are this repository's.

  Args:
    content: of `read_saved`.
    plugins: the flag: `run` for all that the config names, or names, comma-separated.
    path: of the config, for the message.

  Raises:
    ConfigError: naming the files and the flag.
  """
  allowed, requested = plugin_names(plugins), plugin_names(content.get("plugins"))
  ours = {plugin for table in PLUGINS.values() for plugin in table.values()}
  foreign = [name for name in requested if name not in ours.union(allowed)]
  if foreign and OF_RUN not in allowed:
    raise ConfigError(f"{path}: the run names the plugins {', '.join(foreign)}, whose code would "
                      f"run here. Fix: --plugins={OF_RUN}, if you trust them.")


def read_config(workdir: str | Path, devices=None,
                plugins: str = "") -> tuple[Config, list[jax.Device]]:
  """Returns (resolved config, devices) to inspect a run with; arguments of `setup.build`.

  Overlap, rollout devices, the server, quantization and shared_prefix are off, so that a run can be
  read on one device without optional libraries.

  Args:
    devices: the devices at hand; None: all. Devices that the run used for rollouts only are left
      out.
    plugins: the plugins that may be imported: `run` for the plugins that the run names, or their
      names.

  Raises:
    ConfigError: the folder is no run's, or its config names other plugins.
  """
  path = path_of(workdir) / "config.json"
  if not path.exists():
    raise ConfigError(
        f"--workdir={workdir}: no config.json there, so it is no run's folder. Fix: the --workdir "
        "of a run of experiments/main.py.")
  content = read_saved(path, "the folder of another run")
  permit(content, plugins, path)
  cfg = from_saved(content)
  training_devices = parallel.training_devices(cfg.mesh, devices)
  cfg = dataclasses.replace(
      cfg,
      updates=dataclasses.replace(cfg.updates, overlap=False),
      rollout=dataclasses.replace(cfg.rollout, quantization="none", shared_prefix=False),
      mesh=dataclasses.replace(cfg.mesh, rollout=0),
      server=ServerConfig(),
      writer=WriterConfig("none"),
  )
  return setup.resolve(cfg), training_devices


def build_learner(workdir: str | Path, devices=None,
                  plugins: str = "") -> tuple[Config, Task, Learner]:
  """Returns the config, task and learner of a run, as `read_config` changes them. Nothing needs
  closing.

  Raises:
    ConfigError: as `read_config`, or an input of the run is not what it was (inputs.py).
  """
  cfg, training_devices = read_config(workdir, devices, plugins)
  inputs.check(workdir, cfg)
  return setup.build_learner(cfg, training_devices)


def choose(workdir: str | Path, which: str | int = "latest") -> int:
  """Returns the iteration of a run's parameters: of the newest checkpoint, of the best evaluation,
  or the named one.

  Raises:
    ConfigError: it does not exist; the message lists the existing ones.
  """
  saved_iterations = checkpoints.iterations(workdir)
  best_iterations = checkpoints.iterations(workdir, BEST)
  if not saved_iterations and not best_iterations:
    raise ConfigError(
        f"{path_of(workdir) / 'checkpoints'}: no checkpoint there. Fix: the --workdir of a run "
        "that reached its first one.")
  if which == "latest" and saved_iterations:
    return saved_iterations[-1]
  if which == "best" and best_iterations:
    return best_iterations[-1]  # of two, the later one is better: the other is soon removed
  if str(which).isdigit() and int(which) in saved_iterations + best_iterations:
    return int(which)
  best = "; none of a best evaluation"
  if best_iterations:
    best = f", and of the best evaluation, {best_iterations[-1]}"
  choices = ["latest"] * bool(saved_iterations) + ["best"] * bool(best_iterations)
  raise ConfigError(
      f"--checkpoint={which}: {workdir} has checkpoints of iterations "
      f"{', '.join(map(str, saved_iterations))}{best}. Fix: one of them, or "
      f"{' or '.join(choices)}.")


def _folder(workdir: Path, iteration: int) -> Path:
  """Returns the folder of a checkpoint, or else of the best parameters."""
  if iteration in checkpoints.iterations(workdir):
    return workdir / "checkpoints" / str(iteration) / "default"
  return workdir / BEST / str(iteration)


def restore_start(cfg: Config, learner: Learner, workdir: str | Path,
                  which: str | int = "latest") -> tuple[int, Start]:
  """Returns (iteration, trained and frozen parameters) of a checkpoint, laid out for the learner's
  mesh.

  No optimizer state is read.

  Raises:
    ConfigError: no such checkpoint, or `pretrained` holds other weights than when the run began.
    TornCheckpointsError: it cannot be read.
  """
  inputs.check(workdir, cfg, only=inputs.PRETRAINED)
  workdir, iteration = path_of(workdir), choose(workdir, which)
  parameters = learner.cfg.parameters
  shapes, _ = trainable.shapes_of(learner.model, parameters)
  layout, _ = trainable.shardings(learner.model, parameters, learner.mesh)
  like = {"train": {"params": checkpoints.abstract(shapes, layout)}}
  alternatives = [i for i in checkpoints.iterations(workdir) if i != iteration]
  fix = f"another of the checkpoints {alternatives}" if alternatives else "a copy of the folder"
  tree = checkpoints.restore_part(_folder(workdir, iteration), like, fix)
  return iteration, Start(tree["train"]["params"], frozen_start(cfg.pretrained, learner, workdir))


def restore_trained(cfg: Config, learner: Learner, workdir: str | Path,
                    which: str | int = "latest") -> tuple[int, Params]:
  """Returns (iteration, parameters that the model reads) of a checkpoint; raises as
  `restore_start`.
  """
  iteration, start = restore_start(cfg, learner, workdir, which)
  return iteration, learner.merged(start)


def export(workdir: str | Path, out: str | Path, which: str | int = "latest",
           dtype: str | None = None, plugins: str = "") -> int:
  """Writes a checkpoint's parameters, adapters merged, as a Hugging Face directory with tokenizer;
  returns its iteration.

  Raises:
    ConfigError, TornCheckpointsError: as `read_config` and `restore_start`.
    CheckpointError: as `hf.save_pretrained`, for example because `out` holds a checkpoint.
  """
  cfg, task, learner = build_learner(workdir, plugins=plugins)
  iteration, params = restore_trained(cfg, learner, workdir, which)
  hf.save_pretrained(out, learner.model, params, tokenizer=task.tokenizer, dtype=dtype)
  return iteration


def export_adapter(workdir: str | Path, out: str | Path, which: str | int = "latest",
                   dtype: str = "float32", plugins: str = "") -> int:
  """Writes a checkpoint's adapters in the format of PEFT; returns its iteration.

  Raises:
    ConfigError: the run trains more than adapters, which the format does not hold; another dtype
      than float32.
    TornCheckpointsError, CheckpointError: as `restore_start` and `peft.save_adapter`.
  """
  cfg, _, learner = build_learner(workdir, plugins=plugins)
  p = cfg.parameters
  if p.train != "lora" or p.patterns or p.head_rows:
    raise ConfigError(
        f"--adapter: the run has parameters.train = {p.train!r}, patterns = {p.patterns} and "
        f"head_rows = {p.head_rows}; an adapter directory holds only low-rank adapters. "
        "Fix: leave --adapter out.")
  if cfg.pretrained and hf.is_adapter(hf.local_directory(cfg.pretrained)):
    raise ConfigError(f"--adapter: the run started from the adapter {cfg.pretrained}, on which "
                      "PEFT puts no second one. Fix: leave --adapter out.")
  if dtype != "float32":
    raise ConfigError(f"--dtype={dtype}: an adapter is stored in float32. Fix: leave --dtype out.")
  iteration, start = restore_start(cfg, learner, workdir, which)
  peft.save_adapter(out, learner.model, start.params["lora"], rank=p.lora_rank, alpha=p.lora_alpha,
                    base=cfg.pretrained)
  return iteration
