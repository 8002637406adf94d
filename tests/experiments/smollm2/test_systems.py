"""The verdicts on the twenty systems: of the committed measurements, and turned by others."""

import copy

import pytest

from experiments.smollm2 import systems


def test_the_page_has_the_list():
  assert systems.text() in (systems.HERE / "README.md").read_text()
  for system in systems.SYSTEMS:
    assert (systems.HERE.parent / system.page / "README.md").is_file(), system.page


def turned(rule: str, of):
  """The measurement with the one number changed that the verdict hangs on."""
  of = copy.deepcopy(of)
  if rule == "law":
    of["1"]["slope"] = 0.5 if abs(of["1"]["slope"] - 0.5) > systems.NEAR else 1.0
  elif rule == "minimum":
    at = of["8"]["positions"][str(systems.DEEP)]
    at["minimum"] = -2 * at["deviation"] if -at["minimum"] < at["deviation"] else 0.0
  elif rule == "energy":
    of["correlation"]["low"] = 0.5
  elif rule == "tail":
    of["int8_weights"]["buckets"][0]["mean"] = 0.0
  elif rule == "lengths":
    of["weights"]["8"]["token"] = of["weights"]["8"]["sequence"] - 2 * systems.ALIKE
  elif rule == "tree":
    of["shared"]["8"]["all"] = 0.1
  elif rule == "shorter":
    of["GRPO-lambda_seed0"]["measured"]["length"][-1] = 1000.0
  elif rule == "count":
    of[0]["layers"][-1]["rounded"] = of[0]["modes"]["as loaded"]["restricted"]
  return of


@pytest.mark.parametrize("system", [system for system in systems.SYSTEMS if system.measured],
                         ids=lambda system: system.name.split(",")[0])
def test_another_measurement_turns_the_verdict(system):
  file, rule = system.measured
  measured = systems.stored(file)
  first, second = rule(measured), rule(turned(rule.__name__, measured))
  if rule.__name__ in ("energy", "tail", "tree", "count", "shorter"):
    assert not second.holds
  else:
    assert first.holds != second.holds
