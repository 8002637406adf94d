"""Parameters of a run, finished or not, read from its folder and exported. Nothing there is
changed.
"""

import dataclasses
import json
from pathlib import Path

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, from_saved
from jaxrl_llm.models import hf, peft, trainable
from jaxrl_llm.runs import checkpoints, setup
from jaxrl_llm.runs.checkpoints import TornCheckpointsError
from jaxrl_llm.runs.setup import Parts
from jaxrl_llm.runs.warm_start import Start, frozen_start


def parts_of(workdir: str | Path, devices=None) -> Parts:
  """Parts for the config that lies in the folder, to look at what was trained.

  Nothing is drawn ahead or on devices set apart for it, and nothing as the run drew where that
  needs a library or a
  number of devices: `sample` rounds no weights and shares no prompt cache. The parts are the
    caller's to close.

  Raises:
    ConfigError: the folder is no run's.
  """
  path = Path(workdir) / "config.json"
  if not path.exists():
    raise ConfigError(
        f"--workdir={workdir}: no config.json there, so it is no run's folder. Fix: the --workdir "
        "of a "
        "run of experiments/main.py.")
  try:
    content = json.loads(path.read_text())
  except ValueError as error:
    raise ConfigError(f"{path}: {error}. Fix: the folder of another run.") from error
  cfg = from_saved(content)
  kept = parallel.training_devices(cfg.mesh, devices)
  cfg = dataclasses.replace(
      cfg, updates=dataclasses.replace(cfg.updates, overlap=False),
      rollout=dataclasses.replace(cfg.rollout, quantization="none", shared_prefix=False),
      mesh=dataclasses.replace(cfg.mesh, rollout=0))
  return setup.build(setup.resolve(cfg), kept)


def choose(workdir: str | Path, which: str | int = "latest") -> int:
  """The iteration of a checkpoint: the newest one, or the one named.

  Raises:
    ConfigError: it does not exist; the message lists those that do.
  """
  found = checkpoints.iterations(Path(workdir))
  if not found:
    raise ConfigError(
        f"{Path(workdir) / 'checkpoints'}: no checkpoint there. Fix: the --workdir of a run that "
        "reached "
        "its first one.")
  if which == "latest":
    return found[-1]
  if str(which).isdigit() and int(which) in found:
    return int(which)
  raise ConfigError(
      f"--checkpoint={which}: {workdir} has checkpoints of iterations "
      f"{', '.join(map(str, found))}. "
      "Fix: one of them, or latest.")


def restore_start(parts: Parts, workdir: str | Path,
                  which: str | int = "latest") -> tuple[int, Start]:
  """(iteration, trained and frozen parameters) of a checkpoint, laid out for `parts.mesh`; no
  optimizer state is read.

  Raises:
    ConfigError: no such checkpoint.
    TornCheckpointsError: it cannot be read.
  """
  workdir, iteration = Path(workdir), choose(workdir, which)
  cfg = parts.cfg.parameters
  like = checkpoints.abstract(trainable.shapes_of(parts.model, cfg)[0],
                              trainable.shardings(parts.model, cfg, parts.mesh)[0])
  path = workdir / "checkpoints" / str(iteration) / "default"
  try:
    tree = checkpoints.restore_part(path, {"train": {"params": like}})
  except Exception as error:  # Orbax raises many types for a torn directory
    reason = str(error).strip().split("\n")[0][:200]
    raise TornCheckpointsError(
        f"{path.parent} cannot be read ({type(error).__name__}: {reason}). Fix: another of the "
        f"checkpoints {checkpoints.iterations(workdir)}.") from error
  return iteration, Start(tree["train"]["params"], frozen_start(parts, workdir))


def restore_trained(parts: Parts, workdir: str | Path,
                    which: str | int = "latest") -> tuple[int, dict]:
  """(iteration, parameters that the model reads) of a checkpoint; raises as `restore_start` does.
  """
  iteration, start = restore_start(parts, workdir, which)
  return iteration, parts.merged(start)


def export(workdir: str | Path, out: str | Path, which: str | int = "latest",
           dtype: str | None = None) -> int:
  """Write a checkpoint's parameters, adapters merged, as a Hugging Face directory with tokenizer;
  its iteration.

  Raises:
    ConfigError, TornCheckpointsError: as `restore_start`.
    CheckpointError: as `hf.save_pretrained`, such as a directory that holds a checkpoint.
  """
  parts = parts_of(workdir)
  parts.close()  # nothing is drawn
  iteration, params = restore_trained(parts, workdir, which)
  hf.save_pretrained(out, parts.model, params, tokenizer=parts.tokenizer, dtype=dtype)
  return iteration


def export_adapter(workdir: str | Path, out: str | Path, which: str | int = "latest",
                   dtype: str = "float32") -> int:
  """Write a checkpoint's adapters in the format of PEFT; its iteration.

  Raises:
    ConfigError: the run trains something else beside adapters, which the format does not hold;
    another dtype.
    TornCheckpointsError, CheckpointError: as `restore_start` and `peft.save_adapter`.
  """
  parts = parts_of(workdir)
  parts.close()  # nothing is drawn
  cfg = parts.cfg.parameters
  if cfg.train != "lora" or cfg.patterns or cfg.head_rows:
    raise ConfigError(
        f"--adapter: the run has parameters.train = {cfg.train!r}, patterns = {cfg.patterns} and "
        f"head_rows = {cfg.head_rows}; an adapter directory holds low-rank adapters alone. "
        "Fix: leave --adapter out.")
  if dtype != "float32":
    raise ConfigError(f"--dtype={dtype}: an adapter is stored in float32. Fix: leave --dtype out.")
  iteration, start = restore_start(parts, workdir, which)
  peft.save_adapter(out, parts.model, start.params["lora"], rank=cfg.lora_rank,
                    alpha=cfg.lora_alpha, base=parts.cfg.pretrained)
  return iteration
