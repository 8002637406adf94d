"""Rewards of a group from a judge that compares its completions in pairs, without the conflicts.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/judges \
    --config.plugins=experiments/papers/judges/reward.py --config.reward.name=task,tournament \
    --config.reward.url=http://127.0.0.1:8000

`tournament` asks a judge over HTTP; `rule_tournament` uses a rule instead, and needs none.
The mean of the component `conflict` is the share of prompts whose preferences contain a cycle
(`reward/component/conflict`). Source: Taming the Judge (arXiv 2510.15514), as in the public code of
RM-Gallery; see README.md.
"""

import asyncio
import dataclasses
import difflib

import numpy as np

from experiments.papers.judges import tournaments
from jaxrl_llm import register
from jaxrl_llm.fields import option
from jaxrl_llm.tasks import reward_calls

WINS = {"first": 1.0, "second": -1.0, "tie": 0.0}


@dataclasses.dataclass(frozen=True)
class Tournament:
  """The numbers of both rewards. The public code's are dgr, first and random."""

  method: str = option("dgr", "`dgr` deletes the conflicts, `copeland` keeps them",
                       choices=("dgr", "copeland"))
  order: str = option("symmetric", "mean over all best orders, or the first one, as the public "
                      "code does", choices=("symmetric", "first"))
  ties: str = option("random", "a tie is an edge of random direction and weight 0, as in the "
                     "public code, or no edge", choices=("random", "none"))
  tournament_weight: float = option(1.0, "weight of the component")


@dataclasses.dataclass(frozen=True)
class Asked(Tournament):
  """The numbers of `tournament`, beside those of every asynchronous reward."""

  url: str = option("http://127.0.0.1:8000", "address of the judge")


@dataclasses.dataclass(frozen=True)
class Ruled(Tournament):
  """The numbers of `rule_tournament`."""

  noise: float = option(0.0, "probability that a pair's verdict is reversed", low=0.0, high=1.0)


@register.reward("tournament", Asked, group=True)
async def tournament(problem, completions, cfg):
  """Asks for {"winner": "first", "second" or "tie"} of a prompt and each pair of distinct texts.

  One call that fails or is late leaves the whole group unscored, `reward.timeout` being the time
  for a group.
  """
  pairs = tournaments.distinct_pairs(completions)
  found = await asyncio.gather(*(_asked(problem, pair, cfg) for pair in pairs))
  return components(problem, completions, dict(zip(pairs, found, strict=True)), cfg)


async def _asked(problem, pair, cfg) -> float:
  question = {"prompt": problem.prompt, "first": pair[0], "second": pair[1]}
  answer = await reward_calls.asked(cfg.url, question, cfg.timeout)
  winner = answer.get("winner") if isinstance(answer, dict) else answer
  if winner not in WINS:
    raise ValueError(f"the judge at {cfg.url} answered {str(answer)[:80]!r}. Fix: "
                     '{"winner": "first"}, "second" or "tie"')
  return WINS[winner]


@register.reward("rule_tournament", Ruled, group=True)
def rule_tournament(problem, completions, cfg):
  """Prefers the text that is more like the answer; `reward.noise` reverses some verdicts."""
  like = {text: difflib.SequenceMatcher(None, text, problem.answer).ratio() for text in completions}
  verdicts = {}
  for first, second in tournaments.distinct_pairs(completions):
    flipped = tournaments.drawn("noise", problem.prompt, first, second) < cfg.noise
    verdicts[first, second] = float(np.sign(like[first] - like[second])) * (-1 if flipped else 1)
  return components(problem, completions, verdicts, cfg)


def components(problem, completions: list[str], verdicts: dict, cfg: Tournament) -> list[dict]:
  """Returns the components of each completion.

  Args:
    verdicts: of each of `distinct_pairs`: 1 if the first one wins, -1 if the second one does, 0.
  """
  def points(*pair):
    return 1 if tournaments.drawn("tie", problem.prompt, *pair) < 0.5 else -1

  preferences = tournaments.between(completions, lambda *pair: verdicts[pair])
  directions = tournaments.between(completions, points) if cfg.ties == "random" else None
  if cfg.method == "copeland":
    rewards = tournaments.scaled(preferences.sum(1))
  else:
    rewards = tournaments.dgr_rewards(preferences, cfg.order, directions)
  found = float(tournaments.has_conflict(preferences))
  return [{"tournament": (float(reward), cfg.tournament_weight), "conflict": (found, 0.0)}
          for reward in rewards]
