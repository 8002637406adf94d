"""`Lab`: sweeps of methods over learning rates, staleness and engine noise, and their results."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from experiments.tables_lib.arena import checks, figures, methods, runs, tables
from experiments.tables_lib.arena.records import Cell, best_step, cells_of
from experiments.tables_lib.arena.setting import Setting
from jaxrl_llm.config import ConfigError

STEPS = (0.02, 0.04, 0.08, 0.16, 0.32)


@dataclasses.dataclass(frozen=True)
class Lab(Setting):
  """Runs methods in one setting; see `Setting` for the fields."""

  def __post_init__(self):
    self.check_setting()

  def check_setting(self) -> None:
    Setting.check(self)

  def setting(self) -> Setting:
    """Returns the static part of the programs."""
    return Setting(**dataclasses.asdict(self))

  def check(self) -> str:  # type: ignore[override]
    """Returns a table of what was measured; raises RuntimeError if the arena is wrong.

    See `checks`: sampled against exact return and gradient, methods at age 0, the ring.
    """
    return checks.check(self.setting())

  def sweep(self, texts: Sequence[str], steps: Sequence[float] = STEPS, ages: Sequence[int] = (16,),
            seeds: int | Sequence[int] = 16, *, noises: Sequence[float] = (0.0,),
            progress: bool = True) -> "Runs":
    """Returns complete runs of methods at every learning rate, staleness and noise.

    Args:
      texts: methods, see `methods.parse`. A plugin is file.py:name.
      steps: learning rates of the optimizer.
      ages: staleness of the completions, in iterations: 0 is on-policy.
      seeds: how many, or which; each has its automaton, first policy and uniforms.
      noises: standard deviations of the sampler's noise, logits.
      progress: shows a bar on a terminal.

    Raises:
      ConfigError: a wrong method or value; ages that the ring does not hold.
    """
    setting, seeds = self.setting(), tuple(range(seeds) if isinstance(seeds, int) else seeds)
    setting.check_ages(ages)
    setting.check_noises(noises)
    if not texts or not steps or not ages or not noises or len(seeds) < 2:
      raise ConfigError(f"sweep of {len(texts)} methods, {len(steps)} steps, {len(ages)} ages, "
                        f"{len(noises)} noises, {len(seeds)} seeds: at least 1 and 2 seeds")
    method_list = [methods.parse(text, self.length) for text in texts]
    cells: list[Cell] = []
    for method in tqdm(method_list, desc=f"{self.task} {self.length}", disable=None if progress else
                       True):
      cells += run_method(method, setting, (steps, ages, noises), seeds)
    return Runs(self, tuple(cells))


def run_method(method: methods.Method, setting: Setting, grid: tuple, *seeds: Sequence[int],
               program: Any = None) -> list[Cell]:
  """Returns a method's cells over grid = (steps, ages, noises), compiled as one program.

  Args:
    seeds: each as many, run one after the other; a cell has all of them.
  """
  steps, ages, noises = grid
  mesh = np.meshgrid(steps, ages, noises, indexing="ij")
  places = runs.Place(*(jnp.asarray(axis.ravel(), kind) for axis, kind in zip(
      mesh, (jnp.float32, jnp.int32, jnp.float32), strict=True)))
  begun = time.process_time()
  compiled = (program or runs.program(method, setting)).lower(
      jnp.asarray(seeds[0], jnp.int32), places).compile()
  ready = time.process_time()
  parts = [jax.tree.map(np.asarray, compiled(jnp.asarray(part, jnp.int32), places))
           for part in seeds]
  record = jax.tree.map(lambda *x: np.concatenate(x), *parts)
  seconds = (ready - begun, time.process_time() - ready)
  return cells_of(method, setting, grid, sum(map(tuple, seeds), ()), record, seconds)


@dataclasses.dataclass(frozen=True)
class Runs:
  """Complete runs: one cell for each method, staleness and noise, with all steps and seeds."""

  lab: Lab
  cells: tuple[Cell, ...]

  def table(self) -> tables.Table:
    """Returns tuned return, frontier, mean over the run, shares held, fallen and dropped."""
    return tables.summary(self.cells)

  def paired(self, reference: str) -> tables.Table:
    """Returns each method's difference to `reference` on the same automata, with a verdict."""
    return tables.paired(self.cells, reference)

  def phase(self, path=None):
    """Plots step by staleness for each method: colour is the return, text the share that holds."""
    return figures.phase(self.cells, path)

  def more(self, first: str, second: str, *, age: int, seeds: int = 64) -> tables.Table:
    """Decides one pair at one staleness with further seeds, each method at its best rate so far.

    The seeds differ from the seeds that chose the steps.
    """
    pair_cells = [cell for name in (first, second)
                  for cell in self.cells if cell.method == name and cell.age == age]
    if len(pair_cells) != 2:
      pairs = sorted({(cell.method, cell.age) for cell in self.cells})
      raise ConfigError(f"more({first!r}, {second!r}, age={age}): there are {pairs}")
    after = max(max(cell.seeds) for cell in pair_cells) + 1
    further: list[Cell] = []
    for cell in pair_cells:
      method = methods.parse(cell.text, self.lab.length)
      grid = ((cell.steps[best_step(cell)],), (age,), (cell.noise,))
      further += run_method(method, self.lab.setting(), grid, range(after, after + seeds))
    return tables.paired(further, second)
