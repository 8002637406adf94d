"""Advantages, by name; a module is imported when one of its names is looked up."""

from jaxrl_llm.late import late_names
from jaxrl_llm.objective.advantages.registry import (
  OPTIONAL,
  get_advantage,
  metrics,
  names,
  needs,
  register,
  spec,
)
from jaxrl_llm.registry import ADVANTAGES

MODULES = {
    "baselines": ("maxrl", "opmd", "asymre", "opob"),
    "components": ("gdpo",),
    "critic": ("gae",),
    "discounted": ("reinforce_pp", "reinforce_pp_baseline"),
    "group": ("none", "grpo", "dr_grpo", "rloo", "opo"),
    "pass_at_k": ("pass_k", "pass_k_best"),
    "prefix_tree": ("tempo",),
    "teacher": ("reverse_kl",),
    "token_baseline": ("otb", "tir_otb"),
}
ADVANTAGES.files |= {name: f"{__name__}.{module}" for module, advantages in MODULES.items()
                     for name in advantages}
__getattr__ = late_names(__name__, {"value_targets": f"{__name__}.critic"})
__all__ = ["OPTIONAL", "get_advantage", "metrics", "names", "needs", "register", "spec",
           "value_targets"]
