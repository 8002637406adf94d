"""`python -m jaxrl_llm.config`: the commented listing."""

from jaxrl_llm.config.listing import describe

print(describe())
