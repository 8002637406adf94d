"""Importance-ratio estimators, by name. Adding one: see the README's "Add an estimator".

An estimator belongs to the family of its module, so that a new one needs no further line.
"""

from jaxrl_llm.objective.estimators import (
    adaptive,
    batch,
    controls,
    cumulative,
    probability,
    reinforce,
    row_filters,
    sequence,
    slopes,
    suffix,
    token,
    trust_region,
)
from jaxrl_llm.objective.estimators.registry import (
    get_estimator,
    names,
    register,
    required,
    resolve,
    spec,
    stand_ins,
)
from jaxrl_llm.registry import ESTIMATORS

# In the order in which pages and pictures show them; two modules may share a family.
_MODULES = (reinforce, controls, token, slopes, batch, adaptive, trust_region, probability,
            cumulative, suffix, sequence, row_filters)
_FAMILIES = {module.__name__: module.FAMILY for module in _MODULES}
OTHERS = "further estimators"  # of plugins


def families() -> dict[str, list[str]]:
  """Returns family to the names of its estimators, in the order in which they are registered.

  Estimators that no module of the package registered are among OTHERS; a family may be empty.
  """
  modules = {name: spec(name).function.__module__ for name in names()}
  places = [*_FAMILIES, *(module for module in modules.values() if module not in _FAMILIES)]
  by_family: dict[str, list[str]] = {family: [] for family in [*_FAMILIES.values(), OTHERS]}
  entries = [name for name in ESTIMATORS.entries if name in modules]
  for name in sorted(entries, key=lambda name: places.index(modules[name])):
    by_family[_FAMILIES.get(modules[name], OTHERS)].append(name)
  return by_family


__all__ = [
    "OTHERS", "adaptive", "batch", "controls", "cumulative", "families", "get_estimator", "names",
    "probability", "register", "reinforce", "required", "resolve", "row_filters", "sequence",
    "slopes", "spec", "stand_ins", "suffix", "token", "trust_region"
]
