"""Settings shared by the runs of an arena, and the staleness of their rows."""

import dataclasses

import optax

from jaxrl_llm.config import ConfigError
from jaxrl_llm.fields import did_you_mean

MIXTURES = ("none", "batch", "row", "replay")
POLICIES_OF_A_MIXTURE = 4
MARKS = 8  # places along a row, and their number of parts for a critic
OPTIMIZERS = {"adam": lambda: optax.scale_by_adam(b1=0.9, b2=0.99), "sgd": optax.identity}


@dataclasses.dataclass(frozen=True)
class Setting:
  """The runs of a program, static and hashable.

  Attributes:
    task, policy: by name.
    length: largest number of tokens of a row, a multiple of 8.
    groups, group_size: of an iteration's rows; a group starts in one state.
    batches: optimizer batches of an iteration; groups are not split.
    epochs: times that an iteration's batches are gone through; the ratio's denominator stays.
    iterations: number of iterations of a run.
    evaluations: of the return, evenly spaced over the run.
    optimizer: adam (0.9, 0.99) or sgd.
    mixture: of the policies that sampled the rows. none: one policy, `age` iterations old. batch:
      the age differs by group, 0 to `age` in 4 steps. row: it falls from `age` to 0 along a row in
      4 parts, as where weights are updated during the sampling. replay: the current policy samples,
      and the batch's groups are drawn, all alike, from those of this and the `age` iterations
      before; a group may be drawn again in a later iteration.
    ring: number of past policies that are kept; it must exceed the largest age.
  """

  task: str = "warm"
  policy: str = "bilinear"
  length: int = 256
  groups: int = 8
  group_size: int = 8
  batches: int = 2
  iterations: int = 200
  evaluations: int = 20
  optimizer: str = "adam"
  mixture: str = "none"
  ring: int = 65
  epochs: int = 1

  @property
  def rows(self) -> int:
    """Returns the rows of an iteration."""
    return self.groups * self.group_size

  def check(self) -> None:
    """Raises ConfigError for a value that cannot run, naming it and a fix."""
    for name, choices in (("optimizer", tuple(OPTIMIZERS)), ("mixture", MIXTURES)):
      value = getattr(self, name)
      if value not in choices:
        raise ConfigError(f"{name} = {value!r}: allowed are {', '.join(choices)}."
                          f"{did_you_mean(str(value), choices)}")
    for name, divisor in (("length", MARKS), ("groups", self.batches),
                          ("iterations", self.evaluations), ("epochs", 1)):
      value = getattr(self, name)
      if value < 1 or divisor < 1 or value % divisor:
        raise ConfigError(f"{name} = {value}: a positive multiple of {divisor} was expected. "
                          f"Fix: {name}={max(1, value // max(1, divisor)) * max(1, divisor)}.")
    if self.mixture == "batch" and self.groups % POLICIES_OF_A_MIXTURE:
      raise ConfigError(f"groups = {self.groups} with mixture = 'batch': a multiple of "
                        f"{POLICIES_OF_A_MIXTURE} was expected")
    if self.mixture != "none" and self.policy == "gru":
      raise ConfigError(f"mixture = {self.mixture!r} with policy = 'gru': its memory would change "
                        "hands. Fix: policy='bilinear'.")

  def check_noises(self, noises) -> None:
    """Raises ConfigError for noise on a sampler whose log-probs are computed anew later."""
    if self.mixture == "replay" and any(noises):
      raise ConfigError(f"noises = {list(noises)} with mixture = 'replay': the sampler's noise is "
                        "not kept with the groups. Fix: noises=[0].")

  def check_ages(self, ages) -> None:
    """Raises ConfigError for ages that the ring does not reach back to: it would wrap silently."""
    if any(age < 0 or age != int(age) for age in ages):
      raise ConfigError(f"ages = {list(ages)}: whole numbers of iterations >= 0 were expected")
    if ages and max(ages) >= self.ring:
      raise ConfigError(f"ages = {list(ages)} with ring = {self.ring}: a policy of age a needs a "
                        f"ring of a + 1. Fix: ring={max(ages) + 1}.")
