"""Trains on a file of your own: jsonl, json, csv, tsv or parquet, a row for each problem.

  python experiments/main.py --config=configs/own_data.py --config.task.data.path=mine.jsonl \
      --workdir=runs/mine

The columns are `problem` and `answer`; where yours have other names, the first start names them and
the key to set (`--config.task.data.prompt_column=question`). It trains a small network over bytes
from nothing, which first imitates the answers. A checkpoint takes its place, and its tokenizer,
with one more flag:

  --config.pretrained=<folder, .gguf file or hub name>

The start then chooses what fits it, and says so in one line: the learning rate, prompts by its chat
template and as long as the file needs, packed rows, no imitation. Each of these is a key.
experiments/extend/mapping.py shows a file whose problems are made of several columns.
"""

from jaxrl_llm import presets
from jaxrl_llm.config import base_config


def get_config(preset: str = "grpo"):
  config = base_config()
  config.iterations = 20
  config.model.update(vocab_size=258, width=64, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=32, mlp_width=192, scan_layers="auto", remat="auto",
                      compute_dtype="auto")
  config.task.update(name="dataset", heldout_problems=16)  # the last rows of the file
  config.task.prompt.style = "auto"
  # exact compares the whole text or its \boxed{}; numeric, choice (A to J) and math read an answer
  # out of a longer text.
  config.task.data.update(path="mine.jsonl", prompt_column="problem", answer_column="answer",
                          demonstration_column="answer", verifier="exact")
  config.rollout.update(prompts=16, group_size=4, max_prompt_tokens="auto", max_new_tokens=16,
                        window=16)
  config.updates.update(optimizer_batches=2, token_budget="auto", shared_prompts="auto")
  config.optimizer.learning_rate = "auto"
  config.warm_start.update(steps="auto", batch_size=32, learning_rate=3e-3)
  config.evaluation.update(every=5)
  return presets.apply(config, preset)
