"""The arena: complete RL runs of a small policy on token automata, with the return known exactly.

The estimators, advantages, aggregations, corrections and transforms are the package's, or a
plugin's; none of them knows of the arena. Sweeps and tables: experiments/tables_lib/arena.
"""

from jaxrl_llm.lab.arena.automata import Automaton, task

__all__ = ["Automaton", "task"]
