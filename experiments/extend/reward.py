"""A reward of your own with two components, beside the task's verdict, on problems of your own.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/extend_reward \
    --config.plugins=experiments/extend/reward.py --config.reward.name=task,style \
    --config.reward.short_weight=0.2

The reward of a row is the sum of weight x value. `metrics.jsonl` has the mean of each component
(`reward/component/short`), the rollout files the components of each row.
"""

from jaxrl_llm import register


@register.reward("style", limit=16, short_weight=0.1)
def style(problem, completion, cfg):
  """Pays for short completions, and for an equals sign before the result."""
  return {
      "short": (len(completion) <= cfg.limit, cfg.short_weight),
      "equals": ("=" in completion, 0.1),
  }


@register.reward("rare", group=True)
def rare(problem, completions, cfg):
  """A reward of a whole group: an answer that few others gave is worth more."""
  return [{"rare": 1 - completions.count(text) / len(completions)} for text in completions]
