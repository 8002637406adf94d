"""How often does a word occur in a list of twelve? `task.name=occurrences`.

  prompt      Words: stone, cat, cat, ..., river. How many times does the list have the word cat?
  answered    2

Every list has twelve words, so that the place of the question is no cue of the count. Counts of 1
to 9 are equally frequent; the other words are drawn from ten, with repetition.
"""

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import Problem, Reward

LENGTH, MOST = 12, 9
DIGITS = "123456789"
WORDS = ("apple", "river", "stone", "cloud", "table", "horse", "paper", "light", "glass", "bread",
         "chair")


@register.task("occurrences")
class Occurrences(Procedural):
  """Asks for the number of times that a list has a word."""

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays 1 if the completion is the digit and nothing else."""
    correct = completion.strip() == problem.answer
    return Reward(float(correct), correct)

  def more_problems(self) -> str:
    return f"more than {LENGTH} words"

  def generate(self, rng: np.random.Generator) -> Problem:
    count = int(rng.integers(1, MOST + 1))
    target, *others = rng.permutation(WORDS).tolist()
    words = [target] * count + rng.choice(others, LENGTH - count).tolist()
    prompt = (f"Words: {', '.join(rng.permutation(words).tolist())}. How many times does the list "
              f"have the word {target}?")
    return Problem(prompt, str(count), str(count), id=prompt)
