"""Compare two decimals, or add two integers, with numbers as characters or as number tokens.

                        characters   marker               vocabulary
  9.11?9.9     <        9.11?9.9     9 . 110 p ? 9 . ...  9 . 110p ? 9 . 900p
  1234+56789=  58023    1234+56789=  1 k 234 + 56 k ...   1k 234 + 56k 789 =

The problems of a seed are the same, whichever tokens write them.
"""

import re
import zlib

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from experiments.papers.number_tokens.codecs import VARIANTS, TstNumberCodec
from jaxrl_llm import register
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.tasks.procedural import HELDOUT_SEED, HELDOUT_SHARE
from jaxrl_llm.tasks.task_base import TaskBase
from jaxrl_llm.tasks.tokenizer import EOS, PAD, character_tokenizer
from jaxrl_llm.types import Problem, Reward

SIGNS = {"compare": "?<>", "add": "+="}
TRAINED = {"compare": (1, 2, 3), "add": (4, 5, 6)}  # digits of the fraction, or of an operand
ASKED = {"compare": (1, 2, 3, 4, 5, 6), "add": (2, 3, 4, 5, 6, 7, 8)}
LEVELS = {"compare": (0, 2), "add": (2, 0)}  # marked ones that the longest of ASKED needs
TOKEN = {"marker": "[0-9]{1,3}|[kmbtq]|p+|.", "vocabulary": "[0-9]{1,3}[kmbtqp]*|."}


@register.task("numbers", operation="compare", tokens="characters")
class Numbers(TaskBase):
  """Problems of the lengths TRAINED; held-out ones of ASKED, as many of each."""

  def __post_init__(self):
    if self.cfg.operation not in SIGNS or self.cfg.tokens not in ("characters", *VARIANTS):
      raise ConfigError(
          f"task.operation = {self.cfg.operation!r} with task.tokens = {self.cfg.tokens!r}: "
          f"{', '.join(SIGNS)} and characters, {', '.join(VARIANTS)} were expected. Fix: "
          "task.operation=add, task.tokens=characters.")
    self.codec = None if self.cfg.tokens == "characters" else TstNumberCodec(self.cfg.tokens)
    super().__post_init__()

  def make_tokenizer(self):
    signs = SIGNS[self.cfg.operation]
    if self.codec is None:
      return character_tokenizer("0123456789." + signs)
    tokens = (PAD, EOS, ".", *signs, *self.codec.unit_tokens(),
              *self.codec.new_tokens(*LEVELS[self.cfg.operation]))
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)},
                                           unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN[self.cfg.tokens]), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)

  def batch(self, index, shard=0, shards=1):
    rng, size = np.random.default_rng((self.seed, index)), self.batch_size // shards
    lengths = rng.choice(TRAINED[self.cfg.operation], self.batch_size).tolist()
    return [self._draw(rng, n, heldout=False) for n in lengths][shard * size:(shard + 1) * size]

  def heldout(self, size):
    rng, found, lengths = np.random.default_rng(HELDOUT_SEED), {}, ASKED[self.cfg.operation]
    while len(found) < size:
      problem = self._draw(rng, lengths[len(found) % len(lengths)], heldout=True)
      found.setdefault(problem.id, problem)
    return list(found.values())

  def reward(self, problem, completion):
    """1 for the right answer. Components: the same by kind of problem, and the share of digits."""
    if self.codec is not None:
      completion = self.codec.join(re.findall(TOKEN[self.cfg.tokens], completion))
    correct, (_, _, kinds) = completion == problem.answer, problem.id.partition(" ")
    found = [(kind, float(correct)) for kind in kinds.split()]
    if self.cfg.operation == "add":
      found.append((f"digits_{kinds}", right_digits(completion, problem.answer)))
    return Reward(float(correct), correct, components=tuple(found))

  def longest_prompt(self):
    return max(len(self.render(problem)) for problem in self.heldout(100))

  def longest_demonstration(self):
    return max(len(self.demonstration(problem)) for problem in self.heldout(100))

  def _draw(self, rng, length: int, *, heldout: bool) -> Problem:
    while True:
      make = self._comparison if self.cfg.operation == "compare" else self._sum
      text, answer, kind = make(rng, length)
      if (zlib.crc32(text.encode()) % HELDOUT_SHARE == 0) == heldout:
        return Problem(self._written(text), answer, self._written(answer), id=f"{text} {kind}")

  def _written(self, text: str) -> str:
    """The tokens of the text, joined."""
    return text if self.codec is None else "".join(self.codec.pieces(text))

  def _comparison(self, rng, length: int) -> tuple[str, str, str]:
    """Two different decimals, of which one has `length` digits after the point."""
    whole = rng.integers(0, 100, 2)
    whole[1] = whole[0] if rng.random() < 0.5 else whole[1]
    sizes = [length, int(rng.integers(1, length + 1))]
    rng.shuffle(sizes)
    parts = [_digits(rng, size) for size in sizes]
    values = [(int(w), part.ljust(length, "0")) for w, part in zip(whole, parts, strict=True)]
    if values[0] == values[1]:
      return self._comparison(rng, length)
    longer_is_smaller = (values[0] < values[1]) == (sizes[0] > sizes[1])
    trap = " trap" if longer_is_smaller and whole[0] == whole[1] and sizes[0] != sizes[1] else ""
    text = "?".join(f"{w}.{part}" for w, part in zip(whole, parts, strict=True))
    return text, "<" if values[0] < values[1] else ">", f"length_{length}{trap}"

  def _sum(self, rng, length: int) -> tuple[str, str, str]:
    one, other = (int(x) for x in rng.integers(10**(length - 1), 10**length, 2))
    return f"{one}+{other}=", str(one + other), f"length_{length}"


def right_digits(found: str, answer: str) -> float:
  """Returns the share of the answer's digits that stand at their place, counted from the units."""
  if not re.fullmatch("[0-9]+", found):
    return 0.0
  pairs = zip(reversed(found), reversed(answer), strict=False)
  return sum(one == other for one, other in pairs) / max(len(found), len(answer))



def _digits(rng, size: int) -> str:
  return "".join(map(str, rng.integers(0, 10, size)))
