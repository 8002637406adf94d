"""Advice where a program does not fit: the config key that makes it smaller, by column."""

from experiments.planning.analysis import Analysis
from experiments.planning.targets import Chip

LARGE = 0.25  # a column above this share of the device's memory is worth a rule
SAMPLING = ("generate", "prefill", "admit", "decode")

# The remedy for each column, for the programs that train and for the programs that sample.
_TRAINING = {
    "parameters": "raise mesh.fsdp or mesh.tensor (more devices to divide them over)",
    "optimizer": "raise mesh.fsdp, set optimizer.name=adafactor, or train fewer leaves: "
                 "parameters.train=lora",
    "batch": "lower rollout.prompts, or raise updates.optimizer_batches",
    "outputs": "lower rollout.prompts",
    "temporaries": "raise updates.micro_batches (or lower updates.token_budget), set "
                   "model.remat=full or offload, or raise mesh.sequence or mesh.tensor",
    "held": "raise mesh.fsdp, lower updates.staleness, or parameters.train=lora",
}
_SAMPLING = {
    "parameters": "raise mesh.tensor (mesh.fsdp does not divide the sampler's copy)",
    "cache": "lower rollout.slots, set rollout.cache_dtype=bfloat16, or raise mesh.tensor",
    "batch": "lower rollout.prompts",
    "outputs": "lower rollout.prompts",
    "temporaries": "lower rollout.slots (rollout.slots=0 holds all rows at once), set "
                   "rollout.cache_dtype=bfloat16, or raise mesh.fsdp and mesh.tensor",
    "held": "raise mesh.fsdp, or set devices apart for sampling: mesh.rollout",
}


def fits(analysis: Analysis, chip: Chip) -> bool:
  """Returns whether a device holds the program and what else the run has there meanwhile."""
  total = analysis.total
  return total is not None and total <= chip.memory and not analysis.refused


def memory_advice(analysis: Analysis, chip: Chip) -> list[str]:
  """Returns a sentence for each column that is too large; none if the program fits."""
  total = analysis.total
  if fits(analysis, chip):
    return []
  sampling = analysis.program.name in SAMPLING
  rules, sizes = (_SAMPLING if sampling else _TRAINING), _columns(analysis)
  if total is None:
    return [f"does not fit. Fix: {rules['temporaries']}."]
  large = [name for name, size in sizes.items() if size > LARGE * chip.memory]
  large = large or [max(sizes, key=lambda name: sizes[name])]
  over = f"needs {total / 1e9:.3g} GB of {chip.memory / 1e9:g}: does not fit"
  return [f"{over}. {name} are {sizes[name] / 1e9:.3g} GB. Fix: {rules[name]}."
          for name in sorted(large, key=lambda name: -sizes[name]) if name in rules]


def _columns(analysis: Analysis) -> dict[str, int]:
  return {**analysis.arguments, "outputs": analysis.outputs,
          "temporaries": analysis.temporaries or 0, "held": analysis.program.held}
