"""Importance-ratio estimators, by name. Adding one: see the README's "Add an estimator".

An estimator belongs to the family of its module, which is imported when its name is looked up.
"""

import importlib

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
MODULES = {
    "reinforce": ("reinforce", "dro"),
    "controls": ("rec", "delight"),
    "token": ("ppo", "cispo", "sapo"),
    "slopes": ("ce_gppo", "aspo"),
    "batch": ("m2po",),
    "adaptive": ("bapo", "clip_cov", "kl_cov"),
    "trust_region": ("dppo_tv", "dppo_kl", "cppo"),
    "probability": ("ipo", "kpop", "drpo"),
    "cumulative": ("ctpo", "ctpo_geomean", "prefix_power", "minpro"),
    "suffix": ("fipo",),
    "sequence": ("gspo", "seq_is", "gmpo", "topr", "vespo"),
    "row_filters": ("geo_mask", "seq_mis", "mis_po"),
    "groups": ("tpo", "gvpo", "oapl", "qrpo", "real"),
}
ESTIMATORS.files |= {name: f"{__name__}.{module}" for module, estimators in MODULES.items()
                     for name in estimators}
OTHERS = "further estimators"  # of plugins


def families() -> dict[str, list[str]]:
  """Returns family to the names of its estimators, in the order in which they are registered.

  Estimators that no module of the package registered are among OTHERS; a family may be empty.
  """
  modules = {name: spec(name).function.__module__ for name in names()}
  family = {f"{__name__}.{module}": importlib.import_module(f"{__name__}.{module}").FAMILY
            for module in MODULES}
  places = [*family, *(module for module in modules.values() if module not in family)]
  by_family: dict[str, list[str]] = {title: [] for title in [*family.values(), OTHERS]}
  entries = [name for name in ESTIMATORS.entries if name in modules]
  for name in sorted(entries, key=lambda name: places.index(modules[name])):
    by_family[family.get(modules[name], OTHERS)].append(name)
  return by_family


__all__ = ["OTHERS", "families", "get_estimator", "names", "register", "required", "resolve",
           "spec", "stand_ins"]
