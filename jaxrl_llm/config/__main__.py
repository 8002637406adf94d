"""`python -m jaxrl_llm.config`: the commented listing."""

from jaxrl_llm.config.convert import describe

print(describe())
