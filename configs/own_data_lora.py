"""Trains adapters (LoRA) of a checkpoint on a file of your own.

  python experiments/main.py --config=configs/own_data_lora.py --config.task.data.path=mine.jsonl \
      --config.pretrained=<folder or hub name> --workdir=runs/lora

The file is that of own_data.py: a row for each problem, with `problem` and `answer`. The
checkpoint's tokenizer and chat template write the prompts, and `verifier` reads the answer out of a
completion (`math` needs pip install -e '.[math]'). Completions longer than max_new_tokens are cut
off, and then wrong (`rollout/truncated`). The start chooses length of the prompts, packing, dtype
and learning rate, and says so. Own design, not run at this size here.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(preset: str = "grpo"):
  config = base_config()
  config.pretrained = "Qwen/Qwen2.5-0.5B-Instruct"
  config.parameters.update(train="lora", lora_rank=16, lora_alpha=32.0)
  config.iterations = 100
  config.task.update(name="dataset", heldout_problems=64)  # the last rows of the file
  config.task.data.update(path="mine.jsonl", prompt_column="problem", answer_column="answer",
                          verifier="math")
  config.task.prompt.update(
      style="chat", system="Reason step by step, and put your final answer within \\boxed{}.")
  config.rollout.update(prompts=16, group_size=8, max_prompt_tokens="auto", max_new_tokens=1024,
                        window=256)
  config.updates.update(optimizer_batches=2, token_budget="auto", shared_prompts="auto")
  config.optimizer.learning_rate = "auto"
  config.evaluation.update(every=10)
  config.checkpoint.every = 10
  config.model.update(compute_dtype="auto", remat="auto", scan_layers="auto")
  return presets.apply(config, preset)
