"""A task of your own: write a word backwards.

  python experiments/main.py --config=experiments/extend/config.py:own --workdir=runs/extend_task \
    --config.plugins=experiments/extend/task.py \
    --config.task.name=backwards --config.task.letters=3
"""

import numpy as np

from jaxrl_llm import register
from jaxrl_llm.tasks.task_base import TaskBase
from jaxrl_llm.types import Problem, Reward


@register.task("backwards", letters=4)
class Backwards(TaskBase):
  """TaskBase brings a tokenizer of bytes, prompts and demonstrations; the rest is here."""

  def batch(self, index, shard=0, shards=1):
    size = self.batch_size // shards
    return self._words((self.seed, 1, index), self.batch_size)[shard * size:(shard + 1) * size]

  def heldout(self, size):
    return self._words((0, 0), size)  # the same for every seed

  def reward(self, problem, completion):
    correct = completion.strip() == problem.answer
    return Reward(float(correct), correct)

  def longest_prompt(self):
    return self.cfg.letters

  def longest_demonstration(self):
    return self.cfg.letters + 1  # and the end of sequence

  def _words(self, seed, count):
    letters = np.random.default_rng(seed).integers(97, 123, (count, self.cfg.letters))
    words = ["".join(map(chr, row)) for row in letters]
    return [Problem(word, word[::-1], word[::-1], id=word) for word in words]
