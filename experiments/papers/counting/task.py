"""How many words does a list have? `task.name=list_length`.

  prompt      ab,k,xyz,k:
  answered    4

Words are 1 to 3 random letters long, so that the number of characters does not say the number of
words. Lists of 1 to 9 words are equally frequent.
"""

import string

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.tasks import tokenizer as tokenizers
from jaxrl_llm.tasks.procedural import Procedural
from jaxrl_llm.types import Problem, Reward

MOST, LONGEST = 9, 3  # words of a list, letters of a word
DIGITS = "123456789"
ALPHABET = string.ascii_lowercase + ",:0" + DIGITS


@register.task("list_length")
class ListLength(Procedural):
  """Asks for the number of words of a list."""

  def make_tokenizer(self):
    return tokenizers.character_tokenizer(ALPHABET)

  def reward(self, problem: Problem, completion: str) -> Reward:
    """Pays 1 if the completion is the digit and nothing else."""
    correct = completion == problem.answer
    return Reward(float(correct), correct)

  def longest_prompt(self) -> int:
    return MOST * (LONGEST + 1) if self.plain_characters else super().longest_prompt()

  def longest_demonstration(self) -> int:
    return 2 if self.plain_characters else super().longest_demonstration()

  def more_problems(self) -> str:
    return f"longer words than {LONGEST} letters"

  def generate(self, rng: np.random.Generator) -> Problem:
    count = int(rng.integers(1, MOST + 1))
    letters = list(string.ascii_lowercase)
    words = ["".join(rng.choice(letters, rng.integers(1, LONGEST + 1))) for _ in range(count)]
    prompt = ",".join(words) + ":"
    return Problem(prompt, str(count), str(count), id=prompt)
