"""ARCA: the group's advantage shared out by how far adapters move each token's hidden state.

A plugin: `--config.plugins=experiments.papers.arca` enters the advantage `arca` and the column
`adapter_residual`.
"""

from experiments.papers.arca import token_credit
from jaxrl_llm import register

register.metrics("""
credit/gini          | 1     | Gini coefficient of the weights of a row's tokens, mean over rows
credit/effective_tokens | share | tokens that these weights leave in effect, mean over rows
""")

__all__ = ["token_credit"]
