"""jaxrl_llm: reinforcement learning of language models in JAX.

Read in this order: `types`, `objective/estimators`, `objective/loss`, `training/train_step`,
`runs/trainer`.
"""

import os

# transformers is used for tokenizers and configurations only, and says at its import that models
# need PyTorch.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
