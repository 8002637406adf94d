"""configs/chain.py with old rollouts, on which earlier tables compare methods.

  python experiments/main.py --config=configs/chain_offpolicy.py --workdir=runs/offpolicy
  python experiments/main.py --config=configs/chain_offpolicy.py:ctpo --workdir=runs/old_ctpo
  python experiments/main.py --config=configs/chain_offpolicy.py:minpro,4 --workdir=runs/old_short

The second argument is the number of terms, and with it the length of a worked answer: 4 n - 1
tokens, the end of sequence included. Rollouts come from the policy of eight iterations before, and
the learning rate is four times that of configs/chain.py.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(arguments: str = "grpo"):
  preset, _, terms = arguments.partition(",")
  num_terms = int(terms or 5)
  config = base_config()
  config.iterations = 60
  config.model.update(vocab_size=17, width=128, num_layers=4, num_heads=4, num_kv_heads=2,
                      head_dim=32, mlp_width=384)
  config.task.update(name="modular_chain", num_terms=num_terms, worked_share=0.3,
                     heldout_problems=256)
  config.rollout.update(prompts=32, group_size=8, max_prompt_tokens=2 * num_terms - 1,
                        max_new_tokens=4 * (num_terms + 1), window=12)
  config.updates.update(optimizer_batches=4, micro_batches=4, staleness=8)
  config.optimizer.update(learning_rate=2e-4, b2=0.95)
  config.warm_start.update(steps=1000, batch_size=64, micro_batches=4, learning_rate=3e-3)
  config.evaluation.every = 5
  return presets.apply(config, preset or "grpo")
