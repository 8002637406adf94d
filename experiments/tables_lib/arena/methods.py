"""A method of the arena by a short text: `gspo?clip_low=.03&advantage=rloo`."""

import ast

from experiments.tables_lib import method_text
from experiments.tables_lib.arena.method import Method
from jaxrl_llm.config import (
  AdvantageConfig,
  AggregationConfig,
  ConfigError,
  CorrectionConfig,
  EstimatorConfig,
  TransformConfig,
)
from jaxrl_llm.objective import correction
from jaxrl_llm.presets import PRESETS

ANCHORS = ("behavior", "recomputed")
SECTIONS = {"estimator": EstimatorConfig, "advantage": AdvantageConfig,
            "aggregation": AggregationConfig, "transform": TransformConfig}


def parse(text: str, length: int) -> Method:
  """Returns the method of a text, see `method_text`.

  The name is a preset, or an estimator, which then goes with advantage=grpo, aggregation=token.
  A key is a number of the estimator; advantage, aggregation, anchor, shaping or transform; or a
  config key such as advantage.ddof or correction.level. The ratio's denominator is the sampling
  policy unless a preset or `anchor=recomputed` says otherwise; with it, a preset's correction has
  nothing to correct and is left out.

  Args:
    text: see above.
    length: of a row, the divisor of aggregation=fixed unless aggregation.fixed_length is given.

  Raises:
    ConfigError: an unknown name, key or value; or a preset that also sets what the arena lacks.
  """
  parts = method_text.split(text)
  method_text.load(parts)
  keys = (dict(PRESETS[parts.name]) if parts.is_preset else
          {"estimator.name": parts.name, "advantage.name": "grpo", "aggregation.name": "token"})
  options = {key: _value(key, value) for key, value in parts.options}
  keys |= options
  _refuse_absent(text, keys)
  if keys["aggregation.name"] == "fixed":
    keys.setdefault("aggregation.fixed_length", length)
  anchor = keys.get("updates.anchor", "behavior")
  if anchor not in ANCHORS:
    raise ConfigError(f"{text!r}: anchor = {anchor!r}: allowed are {', '.join(ANCHORS)}")
  if anchor == "behavior" and any(key.startswith("correction.") for key in options):
    raise ConfigError(f"{text!r}: correction with anchor = 'behavior': the ratio corrects already. "
                      "Fix: add anchor=recomputed.")
  fix = {section: kind(**_section_values(keys, section)) for section, kind in SECTIONS.items()}
  correction_values = _section_values(keys, "correction") if anchor == "recomputed" else {}
  method = Method(parts.label or text, text, anchor=anchor,
                  signed=keys.get("shaping.name") == "signed",
                  correction=correction.check(CorrectionConfig(**correction_values)), **fix)
  for choice in (method.estimator, method.advantage, method.aggregation):
    choice.table.numbers(choice)
  return method


def _value(key: str, text: str) -> object:
  """Returns the value that a text denotes."""
  if text == "none" and not key.endswith(".name"):
    return None
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    return text


def _refuse_absent(text: str, keys: dict) -> None:
  """Raises ConfigError where a key sets what a run of the arena does not have."""
  sections = (*SECTIONS, "correction")
  absent = [f"{key}={value}" for key, value in keys.items()
            if key.partition(".")[0] not in sections and key != "updates.anchor"
            and (key, value) not in (("shaping.name", "signed"), ("shaping.name", "none"))]
  if absent:
    raise ConfigError(
        f"{text!r} sets {', '.join(absent)}: the arena has estimators, advantages, aggregations, "
        "corrections, anchors, transforms and shaping=signed. Fix: name the estimator, such as "
        "dapo_window@ppo?clip_high=0.28.")


def _section_values(keys: dict, section: str) -> dict:
  """Returns the values of a section of the config by their names there; "none" becomes None."""
  return {key.partition(".")[2]: None if value == "none" and not key.endswith(".name") else value
          for key, value in keys.items() if key.startswith(f"{section}.")}
