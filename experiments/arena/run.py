"""Runs the map of the arena, or one method beside it.

  python experiments/arena/run.py --check                 # the arena against exact values
  python experiments/arena/run.py --jobs=2                # what the map lacks, then the page
  python experiments/arena/run.py --tables=warm_256,ideas --jobs=2
  python experiments/arena/run.py --tables=fresh --jobs=2 # seeds that chose no step
  python experiments/arena/run.py --tables=terminal --jobs=2      # TPO's claims, fresh seeds too
  python experiments/arena/run.py --tables=replay --jobs=2        # groups of mixed ages, likewise
  python experiments/arena/run.py --render                # only the page
  python experiments/arena/run.py --method=ideas/mine.py:capped
  python experiments/arena/run.py --method='gspo?clip_low=.03&clip_high=.04' --table=ending_256

Interrupt it as you like: each method's results are a few lines of results/<table>.jsonl, and the
same command goes on. `--method` writes nothing; it takes the other methods' runs from the map.
"""

import argparse
import dataclasses
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

# A program uses one core, so that several run side by side.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import cells as arena_cells
from claims import ASKED_AFRESH, CLAIMS, FRESH_SEEDS, FURTHER_SEEDS
from tqdm import tqdm

from experiments.commands import cache
from experiments.tables_lib import arena
from experiments.tables_lib.arena import methods, records, tables
from experiments.tables_lib.arena.setting import Setting
from experiments.tables_lib.arena.sweeps import run_method
from jaxrl_llm.config import ConfigError

HERE = Path(__file__).parent
RESULTS = HERE / "results"
BESIDE = ("none", "cispo", "minpro", "grpo")  # that `--method` shows for comparison


def run(job: arena_cells.Job) -> list[arena.Cell]:
  """Returns the cells of a job."""
  cache.keep_programs()
  method = methods.parse(job.method, job.setting.length)
  seeds = [job.seeds]
  if job.fresh:
    size = len(job.seeds)
    seeds += [FRESH_SEEDS[n:n + size] for n in range(0, len(FRESH_SEEDS), size)]
  return run_method(method, job.setting, (job.steps, job.ages, job.noises), *seeds)


def store(job: arena_cells.Job, cells: list[arena.Cell]) -> None:
  """Adds a job's cells to its table, and fresh seeds at the step that the others chose to theirs.
  """
  chosen = [records.of_seeds(cell, job.seeds) for cell in cells]
  if job.fresh:
    records.append(RESULTS / f"{job.fresh}.jsonl", [
        dataclasses.replace(records.of_seeds(every, FRESH_SEEDS, records.best_step(cell)),
                            seconds=(0.0, 0.0))
        for every, cell in zip(cells, chosen, strict=True)])
  records.append(RESULTS / f"{job.table}.jsonl", chosen)


def missing(jobs: list[arena_cells.Job]) -> list[arena_cells.Job]:
  """Returns the jobs of which a cell is not among the results."""
  known = {}
  for table in {job.table for job in jobs}:
    known[table] = {cell.place for cell in records.read(RESULTS / f"{table}.jsonl")}
  return [job for job in jobs if not places(job) <= known[job.table]]


def places(job: arena_cells.Job) -> set[tuple]:
  """Returns what `records.Cell.place` is for each cell of a job."""
  return {records.place(job.method, job.setting, age, noise, job.steps, job.seeds)
          for age in job.ages for noise in job.noises}


def further() -> list[arena_cells.Job]:
  """Returns the jobs of the claims that ask for more seeds, at the steps that the map chose."""
  by_setting = {}
  for claim in (claim for claim in CLAIMS if claim.more):
    for cell in records.merged(records.read(RESULTS / f"{claim.table}.jsonl")):
      if cell.method in (claim.first, claim.second) and (cell.age, cell.noise) == (
          claim.age, claim.noise):
        job = arena_cells.Job("more", cell.text, Setting(**cell.setting),
                              (cell.steps[records.best_step(cell)],), (cell.age,), (cell.noise,),
                              FURTHER_SEEDS)
        by_setting[job.method, job.setting, job.ages] = job
  return list(by_setting.values())


def fresh() -> list[arena_cells.Job]:
  """Returns the jobs of the claims on the map with fresh seeds, at the steps that the map chose:
  method by method, in the order of the claims, so that the first claims are complete first.
  """
  out = []
  for file, tables_of in ASKED_AFRESH.items():
    names = dict.fromkeys(name for claim in CLAIMS if claim.tables == tables_of
                          for name in (claim.first, claim.second))
    every = [cell for table in tables_of
             for cell in records.merged(records.read(RESULTS / f"{table}.jsonl"))]
    out += [arena_cells.Job(file, cell.text, Setting(**cell.setting),
                            (cell.steps[records.best_step(cell)],), (cell.age,), (cell.noise,),
                            FRESH_SEEDS)
            for name in names for cell in every if cell.method == name]
  return out


def run_map(jobs: list[arena_cells.Job], workers: int) -> None:
  """Runs jobs in their order, and adds each one's cells to its table as it ends."""
  total = sum(job.tokens for job in jobs)
  bar = tqdm(total=total, unit="token", unit_scale=True, disable=None)
  with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
    futures = {pool.submit(run, job): job for job in jobs}
    for future in as_completed(futures):
      job = futures[future]
      results = future.result()
      store(job, results)
      bar.update(job.tokens)
      bar.set_postfix_str(f"{job.table} {results[0].method}")
      if bar.disable:
        print(f"{time.strftime('%T')} {job.table} {results[0].method}: {job.runs} runs, processor "
              f"{results[0].seconds[0]:.0f} s to compile, {results[0].seconds[1]:.0f} s to run",
              flush=True)
  bar.close()


def beside(text: str, table: str) -> str:
  """Returns the table of a method beside committed ones, run now on the same automata."""
  committed = records.merged(records.read(RESULTS / f"{table}.jsonl"))
  others = [cell for cell in committed if cell.method in BESIDE]
  if not others:
    raise ConfigError(f"--table={table}: the map has no such table, or none of "
                      f"{', '.join(BESIDE)} in it. Fix: one of "
                      f"{', '.join(sorted(path.stem for path in RESULTS.glob('*.jsonl')))}.")
  first = others[0]
  same = [cell for cell in others if cell.setting == first.setting and cell.noise == first.noise]
  ages = tuple(sorted({cell.age for cell in same if cell.method == first.method}))
  job = arena_cells.Job(table, text, Setting(**first.setting), first.steps, ages, (first.noise,),
                        first.seeds)
  mine = run(job)
  if any(cell.method == mine[0].method for cell in same):
    same = [cell for cell in same if cell.method != mine[0].method]
  parts = [tables.summary([*mine, *same])]
  if any(cell.method == "cispo" for cell in same):
    parts.append(tables.paired([*mine, *(c for c in same if c.method == "cispo")], "cispo"))
  return "\n".join(parts)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--check", action="store_true", help="only compare with exact values")
  parser.add_argument("--render", action="store_true", help="only write the page")
  parser.add_argument("--method", help="one method beside the map: name, name?number=value, or "
                      "file.py:name")
  parser.add_argument("--table", default="warm_256", help="the table that --method joins")
  parser.add_argument("--tables", default="", help="tables to run, separated by commas (all)")
  parser.add_argument("--most", type=int, help="only so many of the missing programs")
  parser.add_argument("--jobs", type=int, default=1, help="programs side by side")
  flags = parser.parse_args()
  try:
    if flags.check:
      print(arena.Lab().check())
    elif flags.method:
      print(beside(flags.method, flags.table))
    else:
      if not flags.render:
        run_map(missing(chosen(flags.tables))[:flags.most], flags.jobs)
      import page
      page.write()
  except ConfigError as error:
    sys.exit(f"error: {error}")


def chosen(names: str) -> list[arena_cells.Job]:
  """Returns the jobs of some tables, or of all."""
  jobs = [*arena_cells.jobs(), *further(), *fresh()]
  wanted = [name for name in names.split(",") if name]
  known = sorted({"more", *ASKED_AFRESH, *(job.table for job in jobs)})
  unknown = sorted(set(wanted) - set(known))
  if unknown:
    raise ConfigError(f"--tables={names}: {', '.join(unknown)} unknown; there are "
                      f"{', '.join(known)}")
  return [job for job in jobs if not wanted or job.table in wanted]


if __name__ == "__main__":
  main()
