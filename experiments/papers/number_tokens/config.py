"""A run of the table: `config.py:add,vocabulary` or `config.py:compare,characters`.

  python experiments/main.py --config=experiments/papers/number_tokens/config.py:add,marker \
    --workdir=runs/number_tokens_one

Supervised training only (iterations = 0). The embedding has as many rows for every kind of tokens,
so that all models have equally many parameters; characters read a dozen of them.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config

# Tokens of the longest prompt and answer.
ROWS = {
    ("compare", "characters"): (19, 2),
    ("compare", "marker"): (13, 2),
    ("compare", "vocabulary"): (9, 2),
    ("add", "characters"): (18, 10),
    ("add", "marker"): (12, 6),
    ("add", "vocabulary"): (8, 4),
}
VOCABULARY = 3400


def get_config(arguments: str = "compare,characters"):
  operation, tokens = arguments.split(",")
  prompt, answer = ROWS[operation, tokens]
  config = base_config()
  config.plugins = ("experiments/papers/number_tokens/task.py",)
  config.iterations = 0
  config.model.update(vocab_size=VOCABULARY, width=64, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=32, mlp_width=192)
  config.task.update(name="numbers", operation=operation, tokens=tokens, heldout_problems=840)
  config.rollout.update(prompts=420, group_size=2, max_prompt_tokens=prompt, max_new_tokens=answer,
                        window=answer)
  config.updates.optimizer_batches = 1
  config.warm_start.update(steps=400, batch_size=32, learning_rate=3e-3)
  return presets.apply(config, "grpo")
