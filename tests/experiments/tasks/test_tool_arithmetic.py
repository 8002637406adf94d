"""Products with a calculator: demonstrations look like rollouts, the tool's text earns nothing."""

import pytest

from experiments.tasks.tool_arithmetic import ToolArithmetic
from jaxrl_llm.config import TaskConfig
from jaxrl_llm.rollouts.environment import Continue, make_environment
from jaxrl_llm.tasks import make_task, tokenizer
from jaxrl_llm.types import Problem

CFG = TaskConfig(name="tool_arithmetic", worked_share=0.5)
TASK = make_task(CFG, 0, 64)
BYTES = make_task(CFG, 0, 64, tokenizer=tokenizer.byte_tokenizer())


def written(task, problem):
  """The policy's text of a demonstration, as the verifier would get it."""
  pairs = zip(task.demonstration(problem), task.demonstration_mask(problem), strict=True)
  return task.tokenizer.decode([i for i, ours in pairs if ours][:-1])


def test_answers_lengths_and_shares():
  called = 0
  for problem in TASK.batch(0) + TASK.heldout(64):
    a, b = map(int, problem.prompt.split("*"))
    assert problem.answer == str(a * b) and 100 <= a <= 999 and 100 <= b <= 999
    assert len(TASK.render(problem)) == TASK.longest_prompt() == 7
    assert len(TASK.demonstration(problem)) <= TASK.longest_demonstration() == 24
    called += problem.demonstration.startswith("[")
  assert 40 < called < 90
  most = max(len(TASK.demonstration(p)) for i in range(8) for p in TASK.batch(i))
  assert most == 24
  only_guesses = ToolArithmetic(TaskConfig(name="tool_arithmetic", worked_share=0.0), 0, 64)
  assert max(len(only_guesses.demonstration(p))
             for p in only_guesses.batch(0)) == only_guesses.longest_demonstration()


@pytest.mark.parametrize("task", [TASK, BYTES], ids=["own", "bytes"])
def test_the_mask_covers_what_the_policy_writes(task):
  for problem in task.batch(1):
    a, b = map(int, problem.id.split("*"))
    guessed = problem.demonstration.startswith("=")
    assert written(task, problem) == (f"={a * b}" if guessed else f"[{a}*{b}]={a * b}")
    mask = task.demonstration_mask(problem)
    assert mask[-1] and sum(not ours for ours in mask) == (0 if guessed else len(f"{a * b};"))
    assert task.tokenizer.decode(task.demonstration(problem)[:-1]) == problem.demonstration
    assert task.reward(problem, written(task, problem)).value == 1.0


@pytest.mark.parametrize("task", [TASK, BYTES], ids=["own", "bytes"])
def test_a_demonstration_is_a_rollout(task):
  """The environment inserts after the call what the demonstration shows there."""
  for problem in [p for p in task.batch(2) if p.demonstration.startswith("[")][:8]:
    ids, mask = task.demonstration(problem), task.demonstration_mask(problem)
    first = mask.index(False)
    last = first + mask[first:].index(True)
    with_tool = make_environment(task.tokenizer, task.protocol, task.tool, eos_ids=task.stop_ids,
                                 max_output_tokens=16)
    assert with_tool.turn_end(ids) == first
    assert with_tool.step(0, ids[:first]) == Continue(tuple(ids[first:last]))
    assert with_tool.turn_end(ids[last:]) == len(ids) - last


RIGHT = ["=56088", "[123*456]=56088", "=1[1+1]=56088", "[1+1]=56088"]
WRONG = [
    "", "56088", "=", "[123*456]", "[123*456]=", "[123*456]56088;", "=56088;", "56088;=", "=56087",
    "=056088", "=56088[1+1]", "=56088=1", "[=56088]"
]


@pytest.mark.parametrize(("text", "right"), [*((text, True) for text in RIGHT),
                                             *((text, False) for text in WRONG)])
def test_only_the_policy_s_own_answer_counts(text, right):
  assert TASK.reward(Problem("123*456", "56088", id="123*456"), text).correct is right


def test_a_verifier_of_the_whole_row_is_rejected():
  """It would reward a value that only the tool wrote."""
  assert any("56088" in text for text in WRONG)


def test_train_and_heldout_are_disjoint_in_either_order():
  def key(problem):
    return tuple(sorted(problem.prompt.split("*")))

  heldout = {key(p) for p in TASK.heldout(256)}
  assert len(heldout) == 256
  assert not heldout & {key(p) for index in range(100) for p in TASK.batch(index)}
  assert TASK.batch(5) == ToolArithmetic(CFG, 0, 64).batch(5) != ToolArithmetic(CFG, 1, 64).batch(5)
