"""Whose fault it is that a reward gives no value.

A reward that gives no value leaves its row unscored: counted, and kept out of the update. It is the
text's own fault, and the reward 0 ("unreadable"), if the reward raises on it and not on another
text of the same problem: a completion of the batch, or the problem's own answer. Never the text's
are what no text causes (`reward_calls.OF_REWARD`), a wrong kind of value, a late call, a service of
an asynchronous reward, and a group, of which no single text is known to be at fault.
"""

from collections.abc import Callable

from jaxrl_llm.sandbox.results import COSTLY, Fault
from jaxrl_llm.tasks.rewards import UNREADABLE
from jaxrl_llm.types import Problem, Reward


def blamed(problems: list[Problem], given: list[Reward | Fault],
           ask: Callable[[list[Problem], list[str]], list[Reward | Fault]]) -> list[Reward | Fault]:
  """Turns a fault of a text into a reward of 0; see the module.

  Args:
    problems: of each row.
    given: the verdict on each row, or why there is none.
    ask: gives the verdicts on one text of each problem.
  """
  scored = {p: v for p, v in zip(problems, given, strict=True) if isinstance(v, Reward)}
  suspects = [p if isinstance(v, Fault) and v.of_text else None
              for p, v in zip(problems, given, strict=True)]
  unknown = [p for p in dict.fromkeys(suspects) if p is not None and p not in scored]
  if unknown:
    answers = ask(unknown, [p.demonstration or p.answer or "" for p in unknown])
    scored |= {p: v for p, v in zip(unknown, answers, strict=True) if isinstance(v, Reward)}
  return [wrong(scored[p], v.reason) if isinstance(v, Fault) and p in scored else v
          for p, v in zip(suspects, given, strict=True)]


def wrong(scored: Reward, reason: str) -> Reward:
  """Returns the reward of a text at fault, with the components of one that can be read."""
  return Reward(0.0, None if scored.correct is None else False, None,
                tuple((name, 0.0) for name, _ in scored.components),
                COSTLY if reason.startswith(COSTLY) else UNREADABLE)
