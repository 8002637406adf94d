"""A plugin: a reward that tells the rows of a group apart in the first 48 groups only."""

import itertools

from jaxrl_llm.tasks import rewards

GROUPS = 48  # three iterations of tiny.py
_GROUPS = itertools.count(1)


@rewards.register("drying", group=True)
def drying(problem, completions, cfg):
  told_apart = len(completions) > 1 and next(_GROUPS) <= GROUPS
  return [{"correct": float(i % 2 == 0 or not told_apart)} for i in range(len(completions))]
