"""Plugins that return nonsense where tests/test_broken_plugins.py does not ask them: in a run, and
of the kinds that it does not have.
"""

import json

from campaign import Case, main

HEAD = "import jax.numpy as jnp\nimport math\nimport sys\nfrom jaxrl_llm import register\n"
REWARD = HEAD + "calls = []\n@register.reward('mine')\ndef mine(problem, completion, cfg):\n"
LATER = "  calls.append(1)\n  if len(calls) < 4:\n    return {'mine': 1.0}\n"
GROUP = HEAD + "@register.reward('mine', group=True)\ndef mine(problem, completions, cfg):\n"
ESTIMATOR = (HEAD + "from jaxrl_llm.types import EstimatorOutput\n@register.estimator('mine')\n"
             "def mine(log_probs, anchor, advantages, mask, cfg):\n")
SHAPING = HEAD + "@register.shaping('mine')\ndef mine(rewards, *arguments, **more):\n"
AGGREGATION = HEAD + "@register.aggregation('mine')\ndef mine(live, advantages, group_id, cfg):\n"
OPTIMIZER = (HEAD + "import optax\n@register.optimizer('mine')\n"
             "def mine(learning_rate, weight_decay, cfg):\n")
BACKEND = HEAD + "@register.backend('mine')\ndef mine(parts):\n"
VERIFIER = HEAD + "@register.verifier('mine')\ndef mine(completion, answer):\n"
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
CHECK = {"task.data.verifier": "mine"}

CASES = {
    "folder of plugins": main({"plugins": "{here}"}, "plugins"),
    "plugin of an own base": plugin("class A(BaseException):\n  pass\nraise A\n", {}, "mine.py"),
    "number whose key is taken": plugin(
        HEAD + "@register.reward('mine', name='x')\ndef mine(problem, completion, cfg):\n"
        "  return 1.0\n", {"reward.name": "mine"}, "mine.py"),
    "reward of an array": reward(REWARD + "  return jnp.ones(3)\n"),
    "reward of its own base later": reward(
        "class A(BaseException):\n  pass\n" + REWARD + LATER + "  raise A('why')\n", "why"),
    "group reward of too few": reward(GROUP + "  return [1.0] * (len(completions) - 1)\n"),
    "estimator of not a number": plugin(
        ESTIMATOR + "  return EstimatorOutput(log_probs * jnp.nan, {})\n", OWN["estimator"],
        "iteration 1"),
    "estimator of plain metrics": plugin(
        ESTIMATOR + "  return EstimatorOutput(log_probs, {'a': 'b'})\n", OWN["estimator"],
        "mine.py"),
    "shaping of another length": plugin(SHAPING + "  return rewards[:1]\n", OWN["shaping"],
                                        "mine.py"),
    "aggregation of not a number": plugin(
        AGGREGATION + "  return jnp.where(live, jnp.nan, 0.0)\n", OWN["aggregation"],
        "iteration 1"),
    "optimizer of nothing": plugin(OPTIMIZER + "  return None\n", OWN["optimizer"], "mine.py"),
    "backend of nothing": plugin(BACKEND + "  return None\n", {"rollout.backend": "mine"},
                                 "mine.py"),
    "backend whose preparation fails": plugin(
        BACKEND + "  return (lambda params: 1 / 0), (lambda *a, **k: None)\n",
        {"rollout.backend": "mine"}, "mine.py", "ZeroDivisionError"),
    "verifier of a text": data(VERIFIER + "  return 'yes'\n", CHECK, "mine.py", "yes"),
    "transform that raises": plugin(TRANSFORM + "  def __init__(self, cfg):\n    1 / 0\n",
                                    OWN["transform"], "mine.py"),
    "environment of ids out of range": turns(
        ENVIRONMENT + ENDS + STEP + "    return Continue((10**6,))\n", OWN["environment"]),
}
