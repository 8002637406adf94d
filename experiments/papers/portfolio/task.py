"""Verdicts on a day's headlines: `task.name=portfolio_verdicts`.

  prompt      +3-1-2+1+3bqdwk   tone and strength of each asset's headline, and their outlets
  completion  KZFKK             keep, zero or flip each asset's score

The reward is a cell of the table of verdicts.py, in percent of the portfolio's value: the day's
return with the verified scores minus that with the scores as they are. What is no verdict gets the
day's smallest reward. Days are simulated (simulation.py), or come from a file of table.py --days.
"""

import dataclasses

import numpy as np

from experiments.papers.portfolio import simulation, verdicts
from jaxrl_llm import register
from jaxrl_llm.fields import ConfigError, option, when
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.order import share
from jaxrl_llm.tasks.task_base import TaskBase
from jaxrl_llm.types import Problem, Reward

PERCENT = 100.0
EQUAL = 1e-9  # rewards that differ by less are equal
HABITS_SEED = 9  # of the verdict that demonstrations favour for an outlet
MADE = when(".days_file", "")
SHARE = {"low": 0.0, "high": 1.0, "when": MADE}


@dataclasses.dataclass(frozen=True)
class VerdictKeys:
  """Keys of `portfolio_verdicts`."""

  days_file: str = option("", "days of a market, written by table.py --days; empty: simulated ones")
  days: int = option(400, "simulated days that are trained on", low=1, high=10**4, when=MADE)
  heldout_days: int = option(100, "simulated days that are held out, after the others", low=1,
                             high=10**4, when=MADE)
  market: int = option(0, "seed of the simulated market", low=0, when=MADE)
  informative: float = option(0.5, "share of outlets whose score the next return follows", **SHARE)
  adversarial: float = option(0.25, "share of outlets whose score it moves against", **SHARE)
  effect: float = option(0.03, "return that a score of 1 stands for", low=0.0, when=MADE)
  habit: float = option(0.5, "share of demonstrated verdicts that are the outlet's favoured one; "
                        "the others are drawn evenly", low=0.0, high=1.0)
  volatility: float = option(0.015, "standard deviation of an asset's own daily return", low=0.0,
                             when=MADE)


@register.task("portfolio_verdicts", VerdictKeys)
class PortfolioVerdicts(TaskBase):
  """Asks for a verdict on each asset's score of a day."""

  def __post_init__(self):
    super().__post_init__()
    self.days = tuple(verdicts.read_days(self.cfg.days_file)) if self.cfg.days_file else (
        simulated(self.cfg))
    self.by_name = {day.name: day for day in self.days}
    self.trained = [day for day in self.days if not day.heldout]
    if not self.trained:
      raise ConfigError(f"task.days_file = {self.cfg.days_file!r}: every day is held out. "
                        "Fix: days with \"heldout\": false.")
    self.assets = self.days[0].assets
    rng = np.random.default_rng(HABITS_SEED)
    self.favoured = dict(zip(simulation.OUTLETS, rng.choice(list(verdicts.LETTERS),
                                                            len(simulation.OUTLETS)), strict=True))

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(
        simulation.OUTLETS + "+-0123456789" + verdicts.LETTERS)

  def batch(self, index, shard=0, shards=1):
    """Returns days that are trained on, drawn with replacement."""
    rng = np.random.default_rng((self.seed, index))
    rows = rng.integers(0, len(self.trained), self.batch_size)
    return share([self._problem(self.trained[row], rng) for row in rows], shard, shards)

  def heldout(self, size):
    """Returns the first held-out days.

    Raises:
      ConfigError: there are fewer.
    """
    days = [day for day in self.days if day.heldout]
    if size > len(days):
      raise ConfigError(f"task.heldout_problems = {size}: {len(days)} days are held out. "
                        "Fix: at most as many, or a larger task.heldout_days.")
    rng = np.random.default_rng(HABITS_SEED)
    return [self._problem(day, rng) for day in days[:size]]

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays the cell of the table, in percent.

    Components, by the true means of a simulated market and else by the day's returns: `gain` of the
    verdict, `regret` to the day's best one, `unverified_regret` of keeping every score; and the
    shares of the day's items with the verdict that leaves what is true of them, by kind.
    `correct`: no verdict is better.
    """
    day = self.by_name[problem.id]
    column = verdicts.column_of(completion, self.assets)
    value = PERCENT * (day.rewards.min() if column is None else day.rewards[column])
    gain = PERCENT * (day.expected.min() if column is None else day.expected[column])
    best = PERCENT * day.expected.max()
    components = [("gain", gain), ("regret", best - gain), ("unverified_regret", best)]
    for kind, name in zip(simulation.KINDS, ("informative_kept", "noise_zeroed",
                                             "adversarial_flipped"), strict=True):
      places = [i for i, letter in enumerate(day.kinds) if letter == kind]
      if places:
        right = [column is not None and completion[i] == simulation.RIGHT[kind] for i in places]
        components.append((name, float(np.mean(right))))
    return Reward(float(value), bool(gain >= best - EQUAL), components=tuple(components))

  def longest_prompt(self):
    return max(len(self.render(Problem(day.prompt, ""))) for day in self.days)

  def longest_demonstration(self):
    return self.assets + 1

  def _problem(self, day: verdicts.Day, rng: np.random.Generator) -> Problem:
    """Returns the problem of a day, with a demonstration that knows nothing of the market.

    An outlet's favoured verdict was drawn without its kind. So a demonstration shows the form of a
    verdict and that it depends on the outlet, and what is right is left to the reward.
    """
    best = verdicts.all_verdicts(self.assets)[int(day.expected.argmax())]
    letters = rng.choice(list(verdicts.LETTERS), self.assets)
    favoured = [self.favoured[outlet] for outlet in day.prompt[-self.assets:]]
    careless = np.where(rng.random(self.assets) < self.cfg.habit, favoured, letters)
    return Problem(day.prompt, best, "".join(careless), id=day.name)


def simulated(cfg) -> tuple[verdicts.Day, ...]:
  """Returns the simulated days of the task's keys.

  Raises:
    ConfigError: shares that are more than 1 together.
  """
  if cfg.informative + cfg.adversarial > 1:
    raise ConfigError(f"task.informative = {cfg.informative} and task.adversarial = "
                      f"{cfg.adversarial} are more than 1 together. Fix: smaller shares.")
  return simulation.simulated_days(cfg.market, cfg.days, cfg.heldout_days, cfg.informative,
                                   cfg.adversarial, cfg.effect, cfg.volatility)
