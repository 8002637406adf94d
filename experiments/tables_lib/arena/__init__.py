"""The arena: complete RL runs of a small policy on token automata, with the return known exactly.

  from experiments.tables_lib import arena

  lab = arena.Lab(task="warm", length=256)
  runs = lab.sweep(["cispo", "gspo?clip_low=.03&clip_high=.04"], ages=[4, 16], seeds=16)
  print(runs.table())
  print(runs.paired("cispo"))
  runs.phase("phase.png")

The estimators, advantages, aggregations, corrections and transforms are the package's, or a
plugin's; none of them knows of the arena. experiments/arena holds the map that this makes.
"""

from experiments.tables_lib.arena.automata import Automaton, task
from experiments.tables_lib.arena.records import Cell
from experiments.tables_lib.arena.sweeps import STEPS, Lab, Runs

__all__ = ["Automaton", "Cell", "Lab", "Runs", "STEPS", "task"]
