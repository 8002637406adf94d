"""What a verifier reads of rows with programs: what is stated or was printed last, no code."""

import functools

import numpy as np
import pytest

from jaxrl_llm.config import RolloutConfig
from jaxrl_llm.grading.grading import last_boxed
from jaxrl_llm.rollouts.environment import Stop, ToolEnvironment
from jaxrl_llm.rollouts.protocols import Fence
from jaxrl_llm.rollouts.tools import ToolResult
from jaxrl_llm.runs.verdicts import completions
from jaxrl_llm.tasks.tokenizer import byte_tokenizer
from jaxrl_llm.types import STOP_ENVIRONMENT, STOP_LENGTH, STOP_TOKEN, STOP_TURNS, Rollout

TOKENIZER = byte_tokenizer()
PROMPT, WIDTH, MAX_TURNS = 3, 400, 2
BOX = "```python\nprint('\\boxed{2}')\n```"  # an answer that stands in the code alone


class Prints:
  def __init__(self, output):
    self.output = output

  def run(self, text):
    return ToolResult("ok", self.output)


def played(turns, output):
  """(environment, row) of a policy that samples these texts; a turn is cut where it ends."""
  environment = ToolEnvironment(TOKENIZER, Prints(output), Fence(),
                                eos_ids=(TOKENIZER.eos_token_id,), max_output_tokens=200)
  ids, turn_id, reason, void = [0] * PROMPT, [0] * PROMPT, STOP_LENGTH, False
  for number, text in enumerate(turns, 1):
    sampled = TOKENIZER.encode(text, add_special_tokens=False)
    kept = environment.turn_end(sampled)
    sampled = sampled[:kept]
    outcome = None if kept is None else environment.step(0, sampled, last=number == MAX_TURNS)
    inserted = [] if outcome is None else [*outcome.ids]
    ids, turn_id = ids + sampled + inserted, turn_id + [number] * len(sampled) + [0] * len(inserted)
    if isinstance(outcome, Stop):
      reason, void = outcome.reason, outcome.void
  padded = lambda x: np.array([x + [0] * (WIDTH - len(x))], np.int32)
  turn, one = padded(turn_id), np.zeros(1, np.int32)
  return environment, Rollout(padded(ids), turn > 0, one + len(ids), one + PROMPT,
                              np.zeros((1, WIDTH), np.float32), one + reason == STOP_LENGTH,
                              one + reason, one, one, one, turn, one + void > 0)


CASES = {
    "answer before a call":
        (["So \\boxed{1}.\n" + BOX], "", STOP_ENVIRONMENT, "So \\boxed{1}.\n", "1"),
    "last call not run": (["First.\n" + BOX,
                           "Then.\n" + BOX], "7\n", STOP_TURNS, "First.\n\nThen.\n", None),
    "cut within a call": (["First.\n" + BOX,
                           "Then.\n" + BOX[:-3]], "7\n", STOP_LENGTH, "First.\n\nThen.\n", None),
    "cut behind a call": (["First.\n" + BOX, "Then."], "7\n", STOP_LENGTH, "First.\n\nThen.", None),
    "answered in the end":
        ([BOX, "It is \\boxed{4}.<eos>"], "7\n", STOP_TOKEN, "\nIt is \\boxed{4}.", "4"),
    "printed": (["Look.\n" + BOX], "\\boxed{3}\n", STOP_ENVIRONMENT,
                "Look.\n\n\nCode execution result: \\boxed{3}\n\n", "3"),
    "no call, as no line closes it": ([BOX[:-3] + "<eos>"], "", STOP_TOKEN, BOX[:-3], "2"),
    "another language": (["```json\n{}\n```\n\\boxed{6}<eos>"], "", STOP_TOKEN,
                         "```json\n{}\n```\n\\boxed{6}", "6"),
}


@pytest.mark.parametrize("what", CASES)
def test_the_code_of_calls_is_not_graded(what):
  turns, output, reason, text, box = CASES[what]
  environment, rollout = played(turns, output)
  assert rollout.stop_reason[0] == reason and not rollout.void[0]
  read = functools.partial(completions, TOKENIZER, environment, RolloutConfig(max_turns=MAX_TURNS))
  assert read(rollout) == [text] and last_boxed(text) == box
  environment.protocol = _Careless()
  if BOX in "".join(turns) and what not in ("answered in the end", "printed"):
    assert last_boxed(read(rollout)[0]) == "2", "a verifier that reads all would pass too"


class _Careless(Fence):
  """Wrong: the whole text of a turn."""

  def stated(self, text, cut=False):
    return text
