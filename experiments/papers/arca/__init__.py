"""ARCA: the group's advantage shared out by how far adapters move each token's hidden state.

Importing the package enters the advantage `arca`, the column `adapter_residual` and the preset.
"""

from experiments.papers.arca import token_credit
from jaxrl_llm.presets import recipe
from jaxrl_llm.reporting.glossary import entries_of

PRESETS = {"arca": recipe("ppo", "arca", "token", parameters__train="lora")}
METRICS = entries_of("""
credit/gini          | 1     | Gini coefficient of the weights of a row's tokens, mean over rows
credit/effective_tokens | share | tokens that these weights leave in effect, mean over rows
""")

__all__ = ["METRICS", "PRESETS", "token_credit"]
