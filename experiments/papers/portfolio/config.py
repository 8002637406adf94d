"""A tiny policy learns which headlines of a simulated market to believe, on a laptop.

  python experiments/main.py --config=experiments/papers/portfolio/config.py --workdir=runs/verdicts

Its prompts have a tone, a strength and an outlet for each of five assets; a verdict keeps, zeroes
or flips each score. The warm start shows the form of a verdict, and habits that know nothing of the
market. Another ratio, baseline or weighting is a flag: --config.estimator.name=cispo.
"""

from jaxrl_llm.config import base_config
from jaxrl_llm.presets import recipe


def get_config():
  config = base_config()
  config.plugins = ("experiments.papers.portfolio.task",)
  config.iterations = 100
  config.model.update(vocab_size=41, width=64, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=32, mlp_width=192)
  config.task.update(name="portfolio_verdicts", heldout_problems=100)
  config.rollout.update(prompts=64, group_size=8, max_prompt_tokens=15, max_new_tokens=6)
  config.updates.update(optimizer_batches=2, micro_batches=1)
  config.optimizer.update(learning_rate=3e-4, b2=0.95)
  # Keeping every score gains as long as most outlets inform: the bonus delays that short cut.
  config.entropy.coef = 0.15
  config.warm_start.update(steps=400, batch_size=64, micro_batches=1, learning_rate=3e-3)
  config.evaluation.update(every=20)
  config.update_from_flattened_dict(recipe("ppo", "grpo", "token"))
  return config
