"""A tiny policy learns which headlines of a simulated market to believe, on a laptop.

  python experiments/main.py --config=experiments/papers/portfolio/config.py --workdir=runs/verdicts

Its prompts name an outlet, a tone and a strength for each of five assets; a verdict keeps, zeroes
or flips each score. The warm start shows the form of a verdict, at random. Another ratio, baseline
or weighting is a flag, as in every config: --config.estimator.name=cispo.
"""

from jaxrl_llm.config import base_config
from jaxrl_llm.presets import recipe


def get_config():
  config = base_config()
  config.plugins = ("experiments.papers.portfolio.task",)
  config.iterations = 60
  config.model.update(vocab_size=41, width=64, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=32, mlp_width=192)
  config.task.update(name="portfolio_verdicts", heldout_problems=100)
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=15, max_new_tokens=6)
  config.updates.update(optimizer_batches=4, micro_batches=1)
  config.optimizer.update(learning_rate=1e-3, b2=0.95)
  config.warm_start.update(steps=150, batch_size=64, micro_batches=1, learning_rate=3e-3)
  config.evaluation.update(every=10, samples=8)
  config.update_from_flattened_dict(recipe("ppo", "grpo", "token"))
  return config
