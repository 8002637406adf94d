"""PIPO: after each rollout batch a further step on the batch before.

Importing the package enters the update transform `pipo` and the preset.
"""

from experiments.papers.pipo import transform
from jaxrl_llm.presets import recipe
from jaxrl_llm.reporting.glossary import entries_of

PRESETS = {"pipo": recipe("ppo", "grpo", "token", transform__name="pipo")}
METRICS = entries_of("""
pipo/xi              | standard deviations | rise of the mean reward over its recent past
pipo/weight          | 1     | weight of the further step on the previous batch
pipo/loss            | 1     | loss of that step
""")

__all__ = ["METRICS", "PRESETS", "transform"]
