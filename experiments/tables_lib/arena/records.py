"""Cells of a sweep: what the runs of one method at one staleness left, as JSON and as arrays."""

import dataclasses
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.tables_lib.arena.method import Method
from experiments.tables_lib.arena.runs import Record
from experiments.tables_lib.arena.setting import Setting
from jaxrl_llm.store.files import write_atomically

HELD = 0.9  # of the optimum: a run that ends there or above holds
FALLEN = 0.2  # a run that ends this far below its best evaluation has fallen
LAST = 0.15  # share of the evaluations whose mean is the final return


@dataclasses.dataclass(frozen=True)
class Cell:
  """The runs of a method at one staleness and noise: N seeds, P learning rates.

  Attributes:
    method, text: the label, and the text that `methods.parse` reads.
    setting: setting of the runs.
    final: [P][N], return over optimum, mean of the last 15 % of the evaluations.
    mean: [P][N], the same over all evaluations.
    best: [P][N], the largest evaluation.
    dropped: [P], share of tokens without gradient.
    length: [P], mean length over the limit, at the end.
    drift, spread: [P][8], of L_t at the eighths of a row.
    seconds: processor seconds of the program that ran this cell, with its other values of
      staleness and noise: to compile, to run.
    share: of the program's runs that are in this cell.
    environment: version of JAX, and the processor.
  """

  method: str
  text: str
  setting: dict
  age: int
  noise: float
  steps: tuple[float, ...]
  seeds: tuple[int, ...]
  final: list
  mean: list
  best: list
  dropped: list
  length: list
  drift: list
  spread: list
  seconds: tuple[float, float]
  share: float
  environment: str

  @property
  def place(self) -> tuple:
    """Returns the key of the cell; see `place`."""
    return place(self.text, Setting(**self.setting), self.age, self.noise, self.steps, self.seeds)


def place(text: str, setting: Setting, age: int, noise: float, steps: Sequence[float],
          seeds: Sequence[int]) -> tuple:
  """Returns a key that two cells share exactly if they are runs of the same thing."""
  return text, setting, age, float(noise), tuple(map(float, steps)), tuple(seeds)


def cells_of(method: Method, setting: Setting, grid: tuple, seeds: Sequence[int], record: Record,
             seconds: tuple[float, float]) -> list[Cell]:
  """Returns a cell for each staleness and noise of a program's record [N, P A X, ...]."""
  steps, ages, noises = grid
  shape = (len(seeds), len(steps), len(ages), len(noises))
  arrays = {name: value.reshape(*shape, *value.shape[2:])
            for name, value in record._asdict().items()}
  last = max(1, round(LAST * setting.evaluations))
  cells = []
  for a, age in enumerate(ages):
    for x, noise in enumerate(noises):
      cell_arrays = {name: np.swapaxes(value[:, :, a, x], 0, 1) for name, value in arrays.items()}
      returns = cell_arrays["returns"]  # [P, N, E]
      cells.append(Cell(
          method.label, method.text, dataclasses.asdict(setting), int(age), float(noise),
          tuple(map(float, steps)), tuple(map(int, seeds)),
          final=_rounded(returns[..., -last:].mean(-1)), mean=_rounded(returns.mean(-1)),
          best=_rounded(returns.max(-1)), dropped=_rounded(cell_arrays["dropped"].mean((1, 2))),
          length=_rounded(cell_arrays["length"][..., -1].mean(1)),
          drift=_rounded(cell_arrays["drift"].mean(1)),
          spread=_rounded(cell_arrays["spread"].mean(1)),
          seconds=(round(seconds[0], 2), round(seconds[1], 2)),
          share=1 / (len(ages) * len(noises)), environment=environment()))
  return cells


def merged(cells: Sequence[Cell]) -> list[Cell]:
  """Returns one cell for the cells that differ only in their rates, with all rates, ascending.

  Runs of one seed share their random numbers, whichever other steps run with them.
  """
  groups: dict[tuple, list[Cell]] = {}
  for cell in cells:
    text, setting, age, noise, _, seeds = cell.place
    groups.setdefault((cell.method, text, setting, age, noise, seeds), []).append(cell)
  return [_merge_steps(group) if len(group) > 1 else group[0] for group in groups.values()]


def _merge_steps(group: Sequence[Cell]) -> Cell:
  """Returns the cell of all steps; of a step that several ran, the last one's runs."""
  rows = {step: (cell, index) for cell in group for index, step in enumerate(cell.steps)}
  steps = sorted(rows)
  of_steps: dict[str, Any] = {
      name: [getattr(cell, name)[index] for cell, index in map(rows.__getitem__, steps)]
      for name in ("final", "mean", "best", "dropped", "length", "drift", "spread")}
  compilation, run = (round(sum(cell.seconds[i] for cell in group), 2) for i in (0, 1))
  return dataclasses.replace(group[0], steps=tuple(steps), seconds=(compilation, run), **of_steps)


def of_seeds(cell: Cell, seeds: Sequence[int], step: int | None = None) -> Cell:
  """Returns the part of a cell that is of some of its seeds, and of one step if it is given.

  What is averaged over the seeds stays as it is, as do the seconds.
  """
  index = [cell.seeds.index(seed) for seed in seeds]
  chosen = range(len(cell.steps)) if step is None else [step]
  values: dict[str, Any] = {name: [[getattr(cell, name)[p][n] for n in index] for p in chosen]
                            for name in ("final", "mean", "best")}
  values |= {name: [getattr(cell, name)[p] for p in chosen]
             for name in ("dropped", "length", "drift", "spread")}
  return dataclasses.replace(cell, steps=tuple(cell.steps[p] for p in chosen), seeds=tuple(seeds),
                             **values)


def at_the_end(cell: Cell) -> bool:
  """Returns whether the best learning rate is the smallest or the largest that ran."""
  return best_step(cell) in (0, len(cell.steps) - 1)


def best_step(cell: Cell) -> int:
  """Returns the index of the learning rate with the largest mean final return."""
  return int(np.argmax(np.mean(cell.final, 1)))


def tuned(cell: Cell, kind: str = "final") -> np.ndarray:
  """Returns `final`, `mean` or `best` of each seed, [N], at the best learning rate."""
  return np.asarray(getattr(cell, kind)[best_step(cell)])


def frontier(cell: Cell) -> np.ndarray:
  """Returns the largest step at which each seed's run holds, [N]; half the smallest if none does.
  """
  stable = np.asarray(cell.final) >= HELD
  steps = np.asarray(cell.steps)[:, None]
  return np.where(stable.any(0), np.max(np.where(stable, steps, 0.0), 0), steps.min() / 2)


def append(path: Path, cells: Sequence[Cell]) -> None:
  """Adds cells to a jsonl file."""
  path.parent.mkdir(parents=True, exist_ok=True)
  before = path.read_text() if path.exists() else ""
  write_atomically(path, before + "".join(json.dumps(dataclasses.asdict(cell)) + "\n"
                                          for cell in cells))


def read(path: Path) -> list[Cell]:
  """Returns the cells of a jsonl file, in its order; none where there is no file.

  Raises:
    ValueError: a line that is not a cell; it names file and line.
  """
  cells = []
  for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
    try:
      entry = json.loads(line)
      for name in ("steps", "seeds", "seconds"):
        entry[name] = tuple(entry[name])
      entry["setting"] = dataclasses.asdict(Setting(**entry["setting"]))  # fields since its run
      cells.append(Cell(**entry))
    except (TypeError, KeyError, ValueError) as error:
      raise ValueError(f"{path}, line {number}: not a cell of the arena ({error}). Fix: delete the "
                       "line; the command runs it again.") from error
  return cells


def environment() -> str:
  """Returns what else numbers may depend on: "jax 0.10.0, cpu AVX-512 ..."."""
  return f"jax {jax.__version__}, {jax.devices()[0].device_kind}, {platform.machine()}"


def _rounded(array) -> list:
  return np.asarray(array, np.float64).round(4).tolist()
