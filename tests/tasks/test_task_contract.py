"""What every task promises: purity, shares, held-out problems, lengths, verdicts; own tokenizer or
a given one.
"""

import dataclasses
import importlib.util
import json

import pytest

from jaxrl_llm.config import DataConfig, GymConfig, PromptConfig, RolloutConfig, TaskConfig
from jaxrl_llm.tasks import TASKS, make_task, tokenizer
from jaxrl_llm.types import Reward

LIMITS = RolloutConfig(max_prompt_tokens=250, max_new_tokens=80)
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
  file = tmp_path_factory.mktemp("data") / "x.jsonl"
  file.write_text("".join(
      json.dumps({
          "question": f"Add {i} and {i}.",
          "answer": f"It is <<{i}+{i}={2 * i}>>.\n"
                    f"#### {2 * i}"
      }) + "\n" for i in range(30)))
  return str(file)


def builder(name, path, given):
  """Makes the task anew; `given`: with a checkpoint's tokenizer and chat template instead of its
  own.
  """
  if name == "reasoning_gym" and importlib.util.find_spec("reasoning_gym") is None:
    pytest.skip("reasoning-gym is not installed")
  cfg = TaskConfig(name=name, heldout_problems=6, data=DataConfig(path=path, mapping="gsm8k"),
                   gym=GymConfig(size=24), prompt=PromptConfig(style="chat" if given else "plain"))
  if not given:
    return lambda seed=0: make_task(cfg, seed, 12, limits=LIMITS)
  loaded = tokenizer.byte_tokenizer()
  loaded.chat_template = CHAT
  return lambda seed=0: make_task(cfg, seed, 12, tokenizer=loaded, limits=LIMITS)


def broken_promises(make) -> list[str]:
  """Names of the promises that the tasks of `make(seed)` break."""
  task, again, other = make(), make(), make(1)
  batches = [task.batch(i) for i in range(4)]
  heldout = task.heldout(6)
  problems = [p for batch in batches for p in batch] + heldout
  texts = [p.demonstration for p in problems]
  promises = {
      "pure": [again.batch(i) for i in (3, 2, 1, 0)][::-1] == batches ==
              [task.batch(i) for i in range(4)],
      "seeded":
          other.batch(0) != batches[0],
      "shares":
          all([p for s in range(n) for p in task.batch(2, s, n)] == batches[2] for n in (2, 3, 4)),
      "heldout is the same for every seed":
          heldout == other.heldout(6) and heldout[:3] == task.heldout(3),
      "heldout is not trained on":
          not {p.prompt for p in heldout} & {p.prompt for b in batches for p in b},
      "prompts fit":
          max(len(task.render(p)) for p in problems) <= LIMITS.max_prompt_tokens,
      "ids are unique":
          all(
              len({p.id
                   for p in part}) == len({p.prompt
                                           for p in part})
              for part in (problems, heldout)),
      "demonstrations end":
          task.has_demonstrations
          and all(task.demonstration(p)[-1] == task.tokenizer.eos_token_id for p in problems),
      "demonstrations are right":
          task.rewards(problems, texts) == [Reward(1.0, True)] * len(texts),
      "rewards are those of each":
          task.rewards(problems[:3], ["", texts[1], "7"]) ==
          [task.reward(p, t) for p, t in zip(problems[:3], ["", texts[1], "7"], strict=True)],
      "stop ids":
          task.stop_ids == (task.tokenizer.eos_token_id,),
  }
  return [name for name, kept in promises.items() if not kept]


@pytest.mark.parametrize("given", [False, True], ids=["own", "given"])
@pytest.mark.parametrize("name", TASKS)
def test_promises(name, path, given):
  make = builder(name, path, given)
  assert broken_promises(make) == []
  if given:
    assert make().tokenizer.decode(make().render(make().batch(0)[0])).startswith("<user>")


def test_wrong_tasks_are_rejected(path):
  make = builder("dataset", path, False)

  def wrong(**methods):
    def build(seed=0):
      task = make(seed)
      for name, method in methods.items():
        setattr(task, name, method(task, getattr(task, name)))
      return task
    return build

  def stateful(task, batch):
    calls = []
    return lambda index, *shard: (calls.append(index), batch(len(calls), *shard))[1]

  assert "pure" in broken_promises(wrong(batch=stateful))
  assert broken_promises(
      wrong(batch=lambda task, batch: lambda index, shard=0, shards=1: batch(index))) == ["shares"]
  assert broken_promises(wrong(heldout=lambda task, heldout: lambda size: task.batch(0)[:size]))
  lenient = lambda task, reward: lambda problem, text: Reward(1.0, True)
  assert broken_promises(wrong(reward=lenient)) == ["rewards are those of each"]


def test_every_choice_of_the_configuration_is_a_task():
  (field,) = (f for f in dataclasses.fields(TaskConfig) if f.name == "name")
  assert set(field.metadata["choices"]) == set(TASKS)
