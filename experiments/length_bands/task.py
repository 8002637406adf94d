"""Copies of a text whose fillers may be left out, so that the content fits several lengths.

  source      cd.ef.g.hi
  answered    cdef.ghi          the letters in their order; dots anywhere, or nowhere

Each source is 16 to 20 characters long, 70 % of them letters, and the other characters are dots,
each after another letter. The letters are consecutive ones of the alphabet, so that a small
network copies them well after a short warm start, and the length is what remains to be learned.
Demonstrations keep a dot with probability `task.kept`, so that most copies of the policy are at
first longer than 0.9 of their source.
"""

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import Problem, Reward

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FILLER = "."
SHORTEST, LONGEST = 16, 20  # characters of a source
CONTENT = 0.7  # share of letters


@register.task("filler_copy", kept=0.85)
class FillerCopy(Procedural):
  """Asks for the letters of a source; its dots are optional."""

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(LETTERS + FILLER)

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays 1 if the completion without dots is the source without dots, else 0."""
    correct = completion.replace(FILLER, "") == problem.answer
    return Reward(float(correct), correct)

  def longest_prompt(self) -> int:
    return LONGEST if self.plain_characters else super().longest_prompt()

  def longest_demonstration(self) -> int:
    return LONGEST + 1 if self.plain_characters else super().longest_demonstration()

  def more_problems(self) -> str:
    return f"longer sources than {LONGEST} characters"

  def generate(self, rng: np.random.Generator) -> Problem:
    length = int(rng.integers(SHORTEST, LONGEST + 1))
    count = round(CONTENT * length)
    first = int(rng.integers(len(LETTERS) - count + 1))
    letters = LETTERS[first:first + count]
    dotted = np.isin(np.arange(count), rng.permutation(count)[:length - count])
    kept = dotted & (rng.random(count) < self.cfg.kept)
    source, shown = (_dotted(letters, at) for at in (dotted, kept))
    return Problem(source, letters, shown, id=source)


def _dotted(letters: str, dotted: np.ndarray) -> str:
  return "".join(letter + FILLER * bool(dot) for letter, dot in zip(letters, dotted, strict=True))
