"""Plugins that return nonsense where tests/test_broken_plugins.py does not ask them: in a run, and
of the kinds that it does not have.
"""

import json

from campaign import Case, main

HEAD = """import asyncio
import sys
import jax.numpy as jnp
import optax
from jaxrl_llm import register
from jaxrl_llm.rollouts.turn_ends import Continue, Stop
from jaxrl_llm.training.transforms import Transform
from jaxrl_llm.types import EstimatorOutput
calls = []
"""
# How a plugin of each kind begins; its body follows.
BEGINS = {
    "reward": "@register.reward('mine')\ndef mine(problem, completion, cfg):\n",
    "group": "@register.reward('mine', group=True)\ndef mine(problem, completions, cfg):\n",
    "estimator": "@register.estimator('mine')\n"
                 "def mine(log_probs, anchor, advantages, mask, cfg):\n",
    "advantage": "@register.advantage('mine')\ndef mine(inputs, cfg):\n",
    "shaping": "@register.shaping('mine')\ndef mine(rewards, *arguments, **more):\n",
    "aggregation": "@register.aggregation('mine')\ndef mine(live, advantages, group_id, cfg):\n",
    "term": "@register.loss_term('mine', coef=1.0)\ndef mine(inputs, cfg):\n",
    "optimizer": "@register.optimizer('mine')\ndef mine(learning_rate, weight_decay, cfg):\n",
    "backend": "@register.backend('mine')\ndef mine(parts):\n",
    "mapping": "@register.mapping('mine', verifier='numeric')\ndef mine(row):\n",
    "verifier": "@register.verifier('mine')\ndef mine(completion, answer):\n",
    "tool": "@register.tool('mine', protocol='inline')\ndef mine(text, cfg):\n",
    "transform": "@register.update_transform('mine')\nclass Mine(Transform):\n",
    "environment": "@register.environment('mine')\nclass Mine:\n  def __init__(self, *arguments):\n"
                   "    pass\n  def close(self):\n    pass\n",
}
DATA = {"task.data.path": "{here}/x.jsonl"}
# The keys that choose it, where they are not its name in the section of its kind.
KEYS = {"group": {"reward.name": "mine"}, "backend": {"rollout.backend": "mine"},
        "mapping": DATA | {"task.data.mapping": "mine", "task.data.verifier": "auto"},
        "verifier": DATA | {"task.data.verifier": "mine"}}
RUNS = {"mapping": "data", "verifier": "data", "tool": "turns", "environment": "turns"}
LATER = "  calls.append(1)\n  if len(calls) < 4:\n    return {'mine': 1.0}\n"
ENDS = "  def turn_end(self, ids, seen=0):\n    return 2 if len(ids) >= 2 else None\n"
STEP = "  def step(self, row_id, ids, last=False):\n"
ROWS = "".join(json.dumps({"problem": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(12))


def plugin(source: str, values: dict[str, str], *texts: str, kind: str = "plain") -> Case:
  return main({"plugins": "{here}/mine.py"} | values, *texts, kind=kind,
              files={"mine.py": HEAD + source, "x.jsonl": ROWS})


def of(kind: str, body: str, *texts: str, where: str = "mine.py") -> Case:
  """Returns a case of a run that uses a plugin of this kind.

  Args:
    where: what the error names beside the texts.
  """
  return plugin(BEGINS[kind] + body, KEYS.get(kind, {f"{kind}.name": "mine"}), where, *texts,
                kind=RUNS.get(kind, "plain"))


def steps(body: str, *texts: str) -> Case:
  """Returns a case of an environment whose turns end and whose steps have this body."""
  return of("environment", ENDS + STEP + body, *texts)


CASES = {
    "folder of plugins": main({"plugins": "{here}"}, "plugins"),
    "plugin that is no Python": main({"plugins": "{here}/x.txt"}, "plugins", "x.txt",
                                     files={"x.txt": "hello"}),
    "plugin of bytes": plugin("\0", {}, "mine.py"),
    "name with a comma": plugin(
        "@register.reward('a,b')\ndef mine(problem, completion, cfg):\n  return 1.0\n", {}, "a,b"),
    "name that is no text": plugin(
        "@register.reward(3)\ndef mine(problem, completion, cfg):\n  return 1.0\n", {}, "mine.py"),
    "number whose key is taken": plugin(
        "@register.reward('mine', name='x')\ndef mine(problem, completion, cfg):\n  return 1.0\n",
        {"reward.name": "mine"}, "mine.py"),
    "reward that exits later": of("reward", LATER + "  sys.exit(0)\n", "SystemExit"),
    "reward without end": of("reward", "  return mine(problem, completion, cfg)\n",
                             "RecursionError"),
    "reward that is no number later": of("reward", LATER + "  return 'good'\n", "good"),
    "group reward of too few": of("group", "  return [1.0] * (len(completions) - 1)\n"),
    "coroutine from a function": of("reward", "  return asyncio.sleep(0)\n", "coroutine"),
    "estimator of not a number": of(
        "estimator", "  return EstimatorOutput(log_probs * jnp.nan, {})\n", where="iteration 1"),
    "estimator of whole numbers": of(
        "estimator", "  return EstimatorOutput(jnp.ones(log_probs.shape, int), {})\n"),
    "estimator of plain metrics": of(
        "estimator", "  return EstimatorOutput(log_probs, {'a': 'b'})\n"),
    "advantage of another type": of("advantage", "  return inputs.mask\n", "bool"),
    "shaping of another length": of("shaping", "  return rewards[:1]\n"),
    "shaping of not a number": of("shaping", "  return rewards * float('nan')\n"),
    "aggregation of a number": of("aggregation", "  return 1.0\n"),
    "term of nothing": of("term", "  return None\n", "None"),
    "term of a row": of("term", "  return inputs.mask.sum(1), {}\n"),
    "optimizer of nothing": of("optimizer", "  return None\n"),
    "optimizer of not a number": of("optimizer", "  return optax.scale(float('nan'))\n",
                                    where="iteration"),
    "optimizer of another tree": of(
        "optimizer", "  return optax.stateless(lambda updates, params: {})\n"),
    "backend of nothing": of("backend", "  return None\n"),
    "backend that samples nothing": of(
        "backend", "  return (lambda params: params), (lambda *a, **k: None)\n"),
    "backend whose preparation fails": of(
        "backend", "  return (lambda params: 1 / 0), (lambda *a, **k: None)\n",
        "ZeroDivisionError"),
    "mapping of a text": of("mapping", "  return row['problem']\n", where="x.jsonl"),
    "mapping that exits": of("mapping", "  sys.exit(0)\n"),
    "verifier of a text": of("verifier", "  return 'yes'\n", "yes"),
    "verifier that raises": of("verifier", "  return 1 / 0\n", "ZeroDivisionError"),
    "tool that exits": of("tool", "  sys.exit(0)\n"),
    "transform that raises": of("transform", "  def __init__(self, cfg):\n    1 / 0\n"),
    "environment of steps of nothing": steps("    return None\n", "None"),
    "environment that stops for no reason": steps("    return Stop('tired')\n", "tired"),
    "environment of ids out of range": steps("    return Continue((10**6,))\n"),
    "environment whose ends raise": of(
        "environment", "  def turn_end(self, ids, seen=0):\n    return 1 / 0\n" + STEP
        + "    return Stop(0)\n", "ZeroDivisionError"),
    "environment that exits": steps("    sys.exit(0)\n"),
}
