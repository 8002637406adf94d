"""Plugins that return nonsense where tests/test_broken_plugins.py does not ask them: in a run, and
of the kinds that it does not have.
"""

import json

from campaign import Case, main

HEAD = "import jax.numpy as jnp\nimport math\nimport sys\nfrom jaxrl_llm import register\n"
REWARD = HEAD + "calls = []\n@register.reward('mine')\ndef mine(problem, completion, cfg):\n"
LATER = "  calls.append(1)\n  if len(calls) < 4:\n    return {'mine': 1.0}\n"
GROUP = HEAD + "@register.reward('mine', group=True)\ndef mine(problem, completions, cfg):\n"
ASYNC = HEAD + "@register.reward('mine')\nasync def mine(problem, completion, cfg):\n"
ESTIMATOR = (HEAD + "from jaxrl_llm.types import EstimatorOutput\n@register.estimator('mine')\n"
             "def mine(log_probs, anchor, advantages, mask, cfg):\n")
ADVANTAGE = HEAD + "@register.advantage('mine')\ndef mine(inputs, cfg):\n"
SHAPING = HEAD + "@register.shaping('mine')\ndef mine(rewards, *arguments, **more):\n"
AGGREGATION = HEAD + "@register.aggregation('mine')\ndef mine(live, advantages, group_id, cfg):\n"
TERM = HEAD + "@register.loss_term('mine', coef=1.0)\ndef mine(inputs, cfg):\n"
OPTIMIZER = (HEAD + "import optax\n@register.optimizer('mine')\n"
             "def mine(learning_rate, weight_decay, cfg):\n")
BACKEND = HEAD + "@register.backend('mine')\ndef mine(parts):\n"
MAPPING = HEAD + "@register.mapping('mine', verifier='numeric')\ndef mine(row):\n"
VERIFIER = HEAD + "@register.verifier('mine')\ndef mine(completion, answer):\n"
TOOL = HEAD + "calls = []\n@register.tool('mine', protocol='inline')\ndef mine(text, cfg):\n"
TRANSFORM = (HEAD + "from jaxrl_llm.training.transforms import Transform\n"
             "@register.update_transform('mine')\nclass Mine(Transform):\n")
ENVIRONMENT = (HEAD + "from jaxrl_llm.rollouts.turn_ends import Continue, Stop\n"
               "@register.environment('mine')\nclass Mine:\n  def __init__(self, *arguments):\n"
               "    pass\n  def close(self):\n    pass\n")
ENDS = "  def turn_end(self, ids, seen=0):\n    return 2 if len(ids) >= 2 else None\n"
STEP = "  def step(self, row_id, ids, last=False):\n"
ROWS = "".join(json.dumps({"problem": f"{i}+1?", "answer": str(i + 1)}) + "\n" for i in range(12))


def plugin(source: str, values: dict[str, str], *texts: str, kind: str = "plain",
           **fields) -> Case:
  """Returns a case of a run with this plugin."""
  values = {"plugins": "{here}/mine.py"} | values
  return main(values, *texts, kind=kind, files={"mine.py": source} | fields.pop("more", {}),
              **fields)


def reward(source: str, *texts: str, **fields) -> Case:
  return plugin(source, {"reward.name": "mine"}, "mine.py", *texts, **fields)


def data(source: str, values: dict[str, str], *texts: str) -> Case:
  return plugin(source, {"task.data.path": "{here}/x.jsonl"} | values, *texts, kind="data",
                more={"x.jsonl": ROWS})


def turns(source: str, values: dict[str, str], *texts: str) -> Case:
  return plugin(source, values, "mine.py", *texts, kind="turns")


OWN = {name: {f"{name}.name": "mine"} for name in
       ("estimator", "advantage", "shaping", "aggregation", "term", "optimizer", "transform",
        "environment", "tool")}
MAP = {"task.data.mapping": "mine", "task.data.verifier": "auto"}
CHECK = {"task.data.verifier": "mine"}

CASES = {
    "folder of plugins": main({"plugins": "{here}"}, "plugins"),
    "plugin that is no Python": main({"plugins": "{here}/x.txt"}, "plugins", "x.txt",
                                     files={"x.txt": "hello"}),
    "plugin of bytes": plugin("\0", {}, "mine.py"),
    "plugin of an own base": plugin("class A(BaseException):\n  pass\nraise A\n", {}, "mine.py"),
    "name with a comma": plugin(
        HEAD + "@register.reward('a,b')\ndef mine(problem, completion, cfg):\n  return 1.0\n", {},
        "a,b"),
    "name that is no text": plugin(
        HEAD + "@register.reward(3)\ndef mine(problem, completion, cfg):\n  return 1.0\n", {},
        "mine.py"),
    "number whose key is taken": plugin(
        HEAD + "@register.reward('mine', name='x')\ndef mine(problem, completion, cfg):\n"
        "  return 1.0\n", {"reward.name": "mine"}, "mine.py"),
    "reward of no component": reward(REWARD + "  return {}\n", "{}"),
    "reward of an unnamed part": reward(REWARD + "  return {1: 1.0}\n"),
    "reward of an array": reward(REWARD + "  return jnp.ones(3)\n"),
    "reward of a complex number": reward(REWARD + "  return 1j\n", "1j"),
    "reward that exits later": reward(REWARD + LATER + "  sys.exit(0)\n", "SystemExit"),
    "reward of its own base later": reward(
        "class A(BaseException):\n  pass\n" + REWARD + LATER + "  raise A('why')\n", "why"),
    "reward without end": reward(REWARD + "  return mine(problem, completion, cfg)\n",
                                 "RecursionError"),
    "reward that is no number later": reward(REWARD + LATER + "  return 'good'\n", "good"),
    "group reward of too few": reward(GROUP + "  return [1.0] * (len(completions) - 1)\n"),
    "reward that waits for nothing": reward(ASYNC + "  return None\n", "None"),
    "coroutine from a function": reward(
        "import asyncio\n" + REWARD + "  return asyncio.sleep(0)\n", "coroutine"),
    "estimator of not a number": plugin(
        ESTIMATOR + "  return EstimatorOutput(log_probs * jnp.nan, {})\n", OWN["estimator"],
        "iteration 1"),
    "estimator of whole numbers": plugin(
        ESTIMATOR + "  return EstimatorOutput(jnp.ones(log_probs.shape, int), {})\n",
        OWN["estimator"], "mine.py"),
    "estimator that looks at a value": plugin(
        ESTIMATOR + "  if log_probs[0, 0] > 0:\n    return None\n", OWN["estimator"], "mine.py"),
    "estimator of plain metrics": plugin(
        ESTIMATOR + "  return EstimatorOutput(log_probs, {'a': 'b'})\n", OWN["estimator"],
        "mine.py"),
    "advantage of another type": plugin(
        ADVANTAGE + "  return inputs.mask\n", OWN["advantage"], "mine.py", "bool"),
    "advantage that prints and fails": plugin(
        ADVANTAGE + "  return inputs.mask.item()\n", OWN["advantage"], "mine.py"),
    "shaping of another length": plugin(SHAPING + "  return rewards[:1]\n", OWN["shaping"],
                                        "mine.py"),
    "shaping of not a number": plugin(SHAPING + "  return rewards * float('nan')\n",
                                      OWN["shaping"], "mine.py"),
    "aggregation of a number": plugin(AGGREGATION + "  return 1.0\n", OWN["aggregation"],
                                      "mine.py"),
    "aggregation of not a number": plugin(
        AGGREGATION + "  return jnp.where(live, jnp.nan, 0.0)\n", OWN["aggregation"],
        "iteration 1"),
    "term of nothing": plugin(TERM + "  return None\n", OWN["term"], "mine.py", "None"),
    "term of a row": plugin(TERM + "  return inputs.mask.sum(1), {}\n", OWN["term"], "mine.py"),
    "optimizer of nothing": plugin(OPTIMIZER + "  return None\n", OWN["optimizer"], "mine.py"),
    "optimizer of not a number": plugin(
        OPTIMIZER + "  return optax.scale(float('nan'))\n", OWN["optimizer"], "iteration"),
    "optimizer of another tree": plugin(
        OPTIMIZER + "  return optax.stateless(lambda updates, params: {})\n", OWN["optimizer"],
        "mine.py"),
    "backend of nothing": plugin(BACKEND + "  return None\n", {"rollout.backend": "mine"},
                                 "mine.py"),
    "backend that samples nothing": plugin(
        BACKEND + "  return (lambda params: params), (lambda *a, **k: None)\n",
        {"rollout.backend": "mine"}, "mine.py"),
    "backend of texts": plugin(
        BACKEND + "  return (lambda params: params), (lambda *a, **k: ('text', {}))\n",
        {"rollout.backend": "mine"}, "mine.py"),
    "backend whose preparation fails": plugin(
        BACKEND + "  return (lambda params: 1 / 0), (lambda *a, **k: None)\n",
        {"rollout.backend": "mine"}, "mine.py", "ZeroDivisionError"),
    "mapping of a text": data(MAPPING + "  return row['problem']\n", MAP, "x.jsonl"),
    "mapping that exits": data(MAPPING + "  sys.exit(0)\n", MAP, "mine.py"),
    "verifier of a text": data(VERIFIER + "  return 'yes'\n", CHECK, "mine.py", "yes"),
    "verifier that raises": data(VERIFIER + "  return 1 / 0\n", CHECK, "mine.py",
                                 "ZeroDivisionError"),
    "tool that exits": turns(TOOL + "  sys.exit(0)\n", OWN["tool"]),
    "transform that raises": plugin(TRANSFORM + "  def __init__(self, cfg):\n    1 / 0\n",
                                    OWN["transform"], "mine.py"),
    "environment of steps of nothing": turns(
        ENVIRONMENT + ENDS + STEP + "    return None\n", OWN["environment"], "None"),
    "environment that stops for no reason": turns(
        ENVIRONMENT + ENDS + STEP + "    return Stop('tired')\n", OWN["environment"], "tired"),
    "environment of ids out of range": turns(
        ENVIRONMENT + ENDS + STEP + "    return Continue((10**6,))\n", OWN["environment"]),
    "environment whose ends raise": turns(
        ENVIRONMENT + "  def turn_end(self, ids, seen=0):\n    return 1 / 0\n" + STEP
        + "    return Stop(0)\n", OWN["environment"], "ZeroDivisionError"),
    "environment that exits": turns(
        ENVIRONMENT + ENDS + STEP + "    sys.exit(0)\n", OWN["environment"]),
}
