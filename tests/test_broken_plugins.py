"""Every way to get a plugin wrong costs one line that names its file, before anything compiles."""

import contextlib
import threading

import jax
import pytest

from experiments.tasks import tool_arithmetic  # noqa: F401  it registers a task
from jaxrl_llm import registry
from jaxrl_llm.config import ConfigError, base_config, from_dict, load_plugins, plugins
from jaxrl_llm.reporting import metric_writers
from jaxrl_llm.wiring import setup

HEAD = "from jaxrl_llm import register\nimport jax.numpy as jnp\n"
ARRAYS = "log_probs, anchor, advantages, mask, cfg"
ESTIMATOR = HEAD + f"@register.estimator('own')\ndef own({ARRAYS}):\n"
ADVANTAGE = HEAD + "@register.advantage('own')\ndef own(inputs, cfg):\n"
REWARD = HEAD + "@register.reward('own')\ndef own(problem, completion, cfg):\n"
TASK = HEAD + "@register.task('own')\nclass Own:\n"
OWN_TASK = (
    HEAD + "from jaxrl_llm.tasks.task_base import TaskBase\nfrom jaxrl_llm.types import Problem\n"
    "@register.task('own')\nclass Own(TaskBase):\n"
    "  def batch(self, index, shard=0, shards=1):\n    return self.heldout(self.batch_size)\n"
    "  def heldout(self, size):\n"
    "    return [Problem('1', '1', '1', id=str(i)) for i in range(size)]\n"
    "  def longest_prompt(self):\n    return 1\n"
    "  def longest_demonstration(self):\n    return 2\n"
    "  def reward(self, problem, completion):\n")
TOOL = HEAD + "@register.tool('own', protocol='inline')\n"
RULE = HEAD + "@register.vocabulary('own', 0.0)\ndef own(logits, value):\n"
ENVIRONMENT = HEAD + "@register.environment('own')\n"
USED = {"estimator.name": "own"}
BYTES = {"task.name": "own", "model.vocab_size": 258}
TURNS = {"rollout.max_turns": 2, "rollout.slots": 8, "rollout.max_tool_tokens": 8}

# what is wrong: (source, settings, texts of the message)
BROKEN = {
    "syntax": ("def own(:\n", {}, ["line 1", "SyntaxError"]),
    "exception at import": (HEAD + "\nx = 1 / 0\n", {}, ["line 4", "1 / 0", "ZeroDivisionError"]),
    "package that is not installed": ("import no_such_package\n", {}, ["no_such_package"]),
    "sys.exit": ("import sys\nsys.exit('bye')\n", {}, ["SystemExit", "bye"]),
    "no decorator": ("def own(*_):\n  return 0\n", USED, ["estimator.name = 'own'", "ctpo",
                                                           "registers nothing"]),
    "decorator without a name": (HEAD + "@register.estimator\ndef own(*_):\n  return 0\n", {},
                                 ["line 3", "@register.estimator"]),
    "name that is taken": (HEAD + "@register.estimator('ctpo')\ndef own(*_):\n  return 0\n", {},
                           ["'ctpo' is registered already"]),
    "number of no type": (HEAD + "@register.estimator('own', gain=[1])\ndef own(*_):\n  return 0\n",
                          {}, ["gain = [1]"]),
    "estimator without metrics": (ESTIMATOR + "  return -log_probs * advantages\n", USED,
                                  ["line 3, own", "EstimatorOutput was expected"]),
    "estimator that returns nothing": (ESTIMATOR + "  pass\n", USED, ["returned None"]),
    "estimator of the wrong shape": (
        ESTIMATOR + "  from jaxrl_llm.types import EstimatorOutput\n"
        "  return EstimatorOutput(jnp.sum(log_probs, 1), {})\n", USED,
        ["per_token_loss", "float32[2]", "float32[2, 3] was expected"]),
    "estimator that raises": (ESTIMATOR + "  return log_probs @ advantages\n", USED,
                              ["line 3, own", "TypeError"]),
    "estimator with too few arguments": (
        HEAD + "@register.estimator('own')\ndef own(log_probs, cfg):\n  return 0\n", USED,
        ["line 3, own", "positional arguments"]),
    "advantage of the wrong shape": (ADVANTAGE + "  return inputs.rewards\n",
                                     {"advantage.name": "own"}, ["float32[2]", "[2, 3]"]),
    "advantage that reads what it does not need": (
        ADVANTAGE + "  return inputs.values * 2\n", {"advantage.name": "own"}, ["line 3, own"]),
    "rule of the wrong type": (RULE + "  return logits - value\n", {"vocabulary.own": 0.1},
                               ["line 3, own", "float32[2, 3]", "bool of their shape"]),
    "rule that raises": (RULE + "  return logits @ value\n", {"vocabulary.own": 0.1},
                         ["line 3, own", "vocabulary 'own'"]),
    "rule whose name is taken": (RULE.replace("'own'", "'top_p'") + "  pass\n", {},
                                 ["'top_p' is registered already"]),
    "reward that returns a text": (REWARD + "  return 'good'\n", {"reward.name": "own"},
                                   ["line 3, own", "returned 'good'"]),
    "reward that raises": (REWARD + "  return problem.truth\n", {"reward.name": "task,own"},
                           ["line 3, own", "AttributeError", "truth"]),
    "task that lacks methods": (
        TASK + "  def __init__(self, *_):\n    self.tokenizer, self.stop_ids = 'abc', (1,)\n",
        {"task.name": "own"}, ["line 3, Own", "lacks batch, heldout"]),
    "task that cannot be made": (TASK + "  pass\n", {"task.name": "own"}, ["line 3, Own",
                                                                             "TypeError"]),
    "task whose reward is a number": (
        OWN_TASK + "    return 1.0\n", BYTES,
        ["Own", "returned [1.0]", "Reward was expected"]),
    "task whose reward raises": (
        OWN_TASK + "    return problem.truth\n", BYTES,
        ["Own", "AttributeError", "truth"]),
    "tool that returns a number": (TOOL + "def own(text, cfg):\n  return 42\n",
                                   TURNS | {"tool.name": "own"}, ["line 3, own", "returned 42"]),
    "tool without a method": (TOOL + "class Own:\n  def run(self, text):\n    return text\n",
                              TURNS | {"tool.name": "own"}, ["line 3, Own", "lacks close"]),
    "metric writer that is a function": (
        HEAD + "@register.metric_writer('own')\ndef own(iteration, values):\n  pass\n",
        {"writer.name": "own"}, ["line 3, own", "lacks write"]),
    "metric writer without a method": (
        HEAD + "from jaxrl_llm.reporting.metric_writers import MetricWriter\n"
        "@register.metric_writer('own')\nclass Own(MetricWriter):\n  pass\n",
        {"writer.name": "tensorboard,own"}, ["line 4, Own", "lacks write"]),
    "environment without a method": (
        ENVIRONMENT + "class Own:\n  def __init__(self, *_):\n    pass\n",
        TURNS | {"environment.name": "own"}, ["line 3, Own", "turn_end, step and close"]),
}


def built(folder, source, settings):
  path = folder / "ideas.py"
  path.write_text(source)
  config = base_config()
  config.model.update(vocab_size=21, width=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8,
                      mlp_width=8)
  config.task.update(name="tool_arithmetic", heldout_problems=4)
  config.rollout.update(prompts=4, group_size=2, max_prompt_tokens=7, max_new_tokens=16, window=16)
  config.mesh.data = 1
  config.update_from_flattened_dict({"plugins": (str(path),)} | settings)
  metric_writers.require(from_dict(config).writer)
  parts = setup.build(setup.resolve(from_dict(config)), jax.devices()[:1])
  parts.sampler.close()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_costs_one_line(tmp_path, name, monkeypatch):
  monkeypatch.setattr(registry, "EMPTY_PLUGINS", [])
  source, settings, texts = BROKEN[name]
  with pytest.raises(ConfigError) as error:
    built(tmp_path, source, settings)
  message = str(error.value)
  assert "\n" not in message and len(message) < 900
  assert all(text in message for text in [*texts, "ideas.py"]), message


@pytest.mark.parametrize("settings", [{}, USED], ids=["unused", "used"])
def test_a_plugin_that_is_right_passes(tmp_path, settings):
  """The checks refuse nothing else."""
  body = ("  from jaxrl_llm.objective.estimators import common\n"
          "  ones = jnp.ones_like(log_probs)\n"
          "  loss = common.score_function_surrogate(ones, log_probs, advantages, mask)\n"
          "  none = jnp.zeros_like(mask)\n"
          "  counts = common.clip_counts(mask, high=none, low=none, dropped=none)\n"
          "  return common.output(loss, counts)\n")
  built(tmp_path, ESTIMATOR + body, settings)


def test_unknown_names_list_those_of_plugins_too(tmp_path):
  for table, name in ((registry.REWARDS, "mine"), (registry.TOOLS, "mine"),
                      (registry.MAPPINGS, "mine"), (registry.VERIFIERS, "mine"),
                      (registry.ENVIRONMENTS, "mine"), (registry.METRIC_WRITERS, "mine"),
                      (registry.TASKS, "mine")):
    table.register(name)(lambda *_: None)
    with pytest.raises(ConfigError, match=rf"{table.key} = 'mien'.*mine.*Did you mean 'mine'"):
      table["mien"]


def registered_in_each_thread(folder, monkeypatch, seconds: float) -> list[bool]:
  """Whether a plugin's estimator is there after loading, in a thread that loads it and in one that
  begins to while the file is read; the file waits for the second one, so many seconds at most.
  """
  reading, ended, seen = threading.Event(), threading.Event(), []
  monkeypatch.setattr(threading, "of_this_test", (reading, ended), raising=False)
  path = folder / "slow.py"
  path.write_text("import threading\nreading, ended = threading.of_this_test\nreading.set()\n"
                  f"ended.wait({seconds})\n{ESTIMATOR}  return log_probs, {{}}\n")

  def load():
    load_plugins((str(path),))
    seen.append("own" in registry.ESTIMATORS.names())

  first = threading.Thread(target=load)
  first.start()
  assert reading.wait(300)
  second = threading.Thread(target=load)
  second.start()
  (first if seconds < 1 else second).join()
  ended.set()
  first.join()
  second.join()
  return seen


@pytest.mark.parametrize("lock", [None, contextlib.nullcontext()], ids=["right", "wrong"])
def test_two_threads_load_a_plugin_once(tmp_path, monkeypatch, lock):
  """Without a lock, the second thread takes a file that is still read for a loaded one."""
  if lock is not None:
    monkeypatch.setattr(plugins, "LOCK", lock)
  answers = registered_in_each_thread(tmp_path, monkeypatch, 0.3 if lock is None else 300.0)
  assert (answers == [True, True]) is (lock is None)
