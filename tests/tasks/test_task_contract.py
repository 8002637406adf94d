"""What every task promises, with its own tokenizer or a given one.

Purity, shares of processes, held-out problems, lengths and verdicts.
"""

import importlib.util
import json

import pytest

from experiments.tasks import countdown  # noqa: F401  it registers a task
from jaxrl_llm.config import DataConfig, GymConfig, PromptConfig, RolloutConfig, TaskConfig
from jaxrl_llm.late import loaded
from jaxrl_llm.tasks import TASKS, make_task, tokenizer
from jaxrl_llm.types import Reward

# Not those of other plugins that tests have imported.
NAMES = [name for name in TASKS.names() if loaded(TASKS[name].function).__module__.startswith(
    ("jaxrl_llm.tasks.", "experiments.tasks."))]
LIMITS = RolloutConfig(max_prompt_tokens=250, max_new_tokens=80)
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
  file = tmp_path_factory.mktemp("data") / "x.jsonl"
  rows = []
  for i in range(30):
    answer = f"It is <<{i}+{i}={2 * i}>>.\n#### {2 * i}"
    rows.append(json.dumps({"question": f"Add {i} and {i}.", "answer": answer}) + "\n")
  file.write_text("".join(rows))
  return str(file)


def builder(name, path, given):
  """Returns a function from a seed to a new task.

  Args:
    given: use a checkpoint's tokenizer and chat template instead of the task's own.
  """
  if name == "reasoning_gym" and importlib.util.find_spec("reasoning_gym") is None:
    pytest.skip("reasoning-gym is not installed")
  cfg = TaskConfig(name=name, heldout_problems=6, data=DataConfig(path=path, mapping="gsm8k"),
                   gym=GymConfig(size=24), prompt=PromptConfig(style="chat" if given else "plain"))
  loaded = None
  if given:
    loaded = tokenizer.byte_tokenizer()
    loaded.chat_template = CHAT

  def make(seed=0):
    return make_task(cfg, seed, 12, tokenizer=loaded, limits=LIMITS)

  return make


def ids_are_unique(problems) -> bool:
  return len({p.id for p in problems}) == len({p.prompt for p in problems})


def broken_promises(make) -> list[str]:
  """Names of the promises that the tasks of `make(seed)` break."""
  task, again, other = make(), make(), make(1)
  batches = [task.batch(i) for i in range(4)]
  heldout = task.heldout(6)
  trained = [p for batch in batches for p in batch]
  problems = trained + heldout
  texts = [p.demonstration for p in problems]
  mixed = ["", texts[1], "7"]
  promises = {
      "pure": [again.batch(i) for i in (3, 2, 1, 0)][::-1] == batches
              and [task.batch(i) for i in range(4)] == batches,
      "seeded": other.batch(0) != batches[0],
      "shares": all(
          [p for s in range(n) for p in task.batch(2, s, n)] == batches[2] for n in (2, 3, 4)),
      "heldout is the same for every seed":
          heldout == other.heldout(6) and heldout[:3] == task.heldout(3),
      "heldout is not trained on":
          not {p.prompt for p in heldout} & {p.prompt for p in trained},
      "prompts fit": max(len(task.render(p)) for p in problems) <= LIMITS.max_prompt_tokens,
      "ids are unique": ids_are_unique(problems) and ids_are_unique(heldout),
      "demonstrations end": task.has_demonstrations and all(
          task.demonstration(p)[-1] == task.tokenizer.eos_token_id for p in problems),
      "demonstrations are right": task.rewards(problems, texts) == [Reward(1.0, True)] * len(texts),
      "rewards are those of each":
          task.rewards(problems[:3], mixed) == list(map(task.reward, problems[:3], mixed)),
      "stop ids": task.stop_ids == (task.tokenizer.eos_token_id,),
  }
  return [name for name, kept in promises.items() if not kept]


@pytest.mark.parametrize("given", [False, True], ids=["own", "given"])
@pytest.mark.parametrize("name", NAMES)
def test_promises(name, path, given):
  make = builder(name, path, given)
  assert broken_promises(make) == []
  if given:
    assert make().tokenizer.decode(make().render(make().batch(0)[0])).startswith("<user>")


def stateful_batch(task, batch):
  calls = []

  def changed(index, *shard):
    calls.append(index)
    return batch(len(calls), *shard)

  return changed


# The wrong versions of a method, as functions of the task and the right method.
WRONG = [
    ("batch", stateful_batch, "pure"),
    ("batch", lambda task, batch: lambda index, shard=0, shards=1: batch(index), "shares"),
    ("heldout", lambda task, heldout: lambda size: task.batch(0)[:size],
     "heldout is not trained on"),
    ("reward", lambda task, reward: lambda problem, text: Reward(1.0, True),
     "rewards are those of each"),
]


@pytest.mark.parametrize("method, change, promise", WRONG)
def test_wrong_tasks_are_rejected(path, method, change, promise):
  make = builder("dataset", path, False)

  def wrong(seed=0):
    task = make(seed)
    setattr(task, method, change(task, getattr(task, method)))
    return task

  assert promise in broken_promises(wrong)
