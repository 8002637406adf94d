"""An environment of your own: guess a number, and hear whether it is too low or too high.

  python experiments/main.py --config=experiments/extend/config.py \
    --workdir=runs/extend_environment --config.plugins=experiments/extend/environment.py \
    --config.environment.name=guess --config.environment.within=1 \
    --config.rollout.slots=16 --config.rollout.max_turns=3
"""

import re

from jaxrl_llm import register
from jaxrl_llm.rollouts.environment import Continue, Stop, TurnEnvironment
from jaxrl_llm.types import STOP_ENVIRONMENT, STOP_TURNS


@register.environment("guess", within=0)
class Guess(TurnEnvironment):
  """A turn ends with a semicolon or a stop token; `<` or `>` is inserted after a wrong guess."""

  def __init__(self, tokenizer, eos_ids, max_output_tokens, cfg):
    super().__init__(tokenizer, eos_ids, markers=(";",))
    self.within = cfg.within

  def step(self, row_id, turn_ids, last=False):
    """Says what follows a turn; called from several threads at once."""
    text, _ = self.split(turn_ids)
    number = re.search(r"\d+", text.rpartition("]")[2])
    answer = int(self.problems[row_id].answer)
    if number is None:
      return Stop(STOP_ENVIRONMENT, void=True)  # no guess: the row is no attempt
    guess = int(number[0])
    if abs(guess - answer) <= self.within:
      return Stop(STOP_ENVIRONMENT)
    return Stop(STOP_TURNS) if last else Continue(tuple(self.ids("<" if guess < answer else ">")))
