"""jaxrl_llm: reinforcement learning of language models in JAX.

Read in this order: `types`, `objective/estimators`, `objective/loss`, `training/train_step`,
`runs/trainer`.
"""
