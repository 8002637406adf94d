"""A reward that differs within a group of any language model: the share of digits."""

from jaxrl_llm import register


@register.reward("digits")
def digits(problem, completion, cfg):
  del problem, cfg
  return {"digits": (sum(map(str.isdigit, completion)) / max(1, len(completion)), 1.0)}
