"""Parameters of a run, finished or not, read from its folder. Nothing there is changed."""

import json
from pathlib import Path

from jaxrl_llm.config import ConfigError, from_dict
from jaxrl_llm.training import checkpoints, parameters, setup
from jaxrl_llm.training.checkpoints import TornCheckpointsError
from jaxrl_llm.training.setup import Parts
from jaxrl_llm.training.warm_start import Start, frozen_start


def parts_of(workdir: str | Path, devices=None) -> Parts:
  """Parts for the config that lies in the folder.

  Raises:
    ConfigError: the folder is no run's.
  """
  path = Path(workdir) / "config.json"
  if not path.exists():
    raise ConfigError(f"--workdir={workdir}: no config.json there, so it is no run's folder. Fix: the --workdir of a "
                      "run of experiments/main.py.")
  try:
    content = json.loads(path.read_text())
  except ValueError as error:
    raise ConfigError(f"{path}: {error}. Fix: the folder of another run.") from error
  return setup.build(setup.resolve(from_dict(content)), devices)


def choose(workdir: str | Path, which: str | int = "latest") -> int:
  """The iteration of a checkpoint: the newest one, or the one named.

  Raises:
    ConfigError: it does not exist; the message lists those that do.
  """
  found = checkpoints.iterations(Path(workdir))
  if not found:
    raise ConfigError(f"{Path(workdir) / 'checkpoints'}: no checkpoint there. Fix: the --workdir of a run that reached "
                      "its first one.")
  if which == "latest":
    return found[-1]
  if str(which).isdigit() and int(which) in found:
    return int(which)
  raise ConfigError(f"--checkpoint={which}: {workdir} has checkpoints of iterations {', '.join(map(str, found))}. "
                    "Fix: one of them, or latest.")


def restore_start(parts: Parts, workdir: str | Path, which: str | int = "latest") -> tuple[int, Start]:
  """(iteration, trained and frozen parameters) of a checkpoint, laid out for `parts.mesh`; no optimizer state is read.

  Raises:
    ConfigError: no such checkpoint.
    TornCheckpointsError: it cannot be read.
  """
  workdir, iteration = Path(workdir), choose(workdir, which)
  cfg = parts.cfg.parameters
  like = checkpoints.abstract(parameters.shapes_of(parts.model, cfg)[0],
                              parameters.shardings(parts.model, cfg, parts.mesh)[0])
  path = workdir / "checkpoints" / str(iteration) / "default"
  try:
    tree = checkpoints.restore_part(path, {"train": {"params": like}})
  except Exception as error:  # Orbax raises many types for a torn directory
    reason = str(error).strip().split("\n")[0][:200]
    raise TornCheckpointsError(f"{path.parent} cannot be read ({type(error).__name__}: {reason}). Fix: another of the "
                               f"checkpoints {checkpoints.iterations(workdir)}.") from error
  return iteration, Start(tree["train"]["params"], frozen_start(parts, workdir))


def restore_trained(parts: Parts, workdir: str | Path, which: str | int = "latest") -> tuple[int, dict]:
  """(iteration, parameters that the model reads) of a checkpoint; raises as `restore_start` does."""
  iteration, start = restore_start(parts, workdir, which)
  return iteration, parts.merged(start)
