"""PIPO: after each rollout batch a further step on the batch before.

A plugin: `--config.plugins=experiments.papers.pipo` enters the update transform `pipo`.
"""

from experiments.papers.pipo import transform
from jaxrl_llm import register

register.metrics("""
pipo/xi              | standard deviations | rise of the mean reward over its recent past
pipo/weight          | 1     | weight of the further step on the previous batch
pipo/loss            | 1     | loss of that step
""")

__all__ = ["transform"]
