"""The keys of the procedural tasks, which a config lists without importing the tasks."""

import dataclasses

from jaxrl_llm.fields import option


@dataclasses.dataclass(frozen=True)
class ModularChainKeys:
  """Config keys of the task `modular_chain`."""

  num_terms: int = option(6, "digits in a chain", low=2, high=64)
  worked_share: float = option(1.0, "share of demonstrations that write every step; the others "
                               "only answer", low=0.0, high=1.0)


@dataclasses.dataclass(frozen=True)
class GymConfig:
  """A task of the reasoning-gym package (extra `gym`)."""

  name: str = option("chain_sum", "name of a reasoning-gym dataset")
  size: int = option(10_000, "training problems", low=1)
  options: str = option("{}", "JSON object of the dataset's own options")


@dataclasses.dataclass(frozen=True)
class ReasoningGymKeys:
  """Config keys of the task `reasoning_gym`."""

  gym: GymConfig = GymConfig()


@dataclasses.dataclass(frozen=True)
class RecurrenceKeys:
  """Config keys of the task `recurrence`."""

  steps: int = option(31, "values in a completion", low=1, high=4096)
  lag: int = option(4, "values in a prompt, and the distance of the older operand", low=3, high=64)
  context: int = option(2, "values that decide whether a step goes wrong: 2 (100 contexts) or 3 "
                           "(1000)", low=2, high=3)
  mistake_contexts: tuple = option((), "contexts of each kind of mistake", of=int, low=0)
  mistake_rates: tuple = option((), "rate of each kind of mistake in the "
                                "demonstrations", of=float, low=0.0, high=1.0)
  slips: float = option(0.0, "rate of wrong values in other contexts", low=0.0, high=1.0)
  careless: float = option(0.0, "share of values written carelessly; 0: one notation only",
                           low=0.0, high=1.0)
  misread: int = option(0, "contexts in which a careless operand is misread", low=0, high=1000)
