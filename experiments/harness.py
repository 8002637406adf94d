"""EleutherAI's lm-eval on a checkpoint or a run, as a second opinion; flags are lm-eval's.

  pip install -e '.[lm-eval]'
  python experiments/harness.py run --model_args pretrained=DIR --tasks gsm8k --batch_size 32 \
    --apply_chat_template
  python experiments/harness.py run --model_args workdir=runs/a,checkpoint=best --tasks mine \
    --include_path tasks

`--model` is `jaxrl_llm` unless it is named: experiments/commands/lm_harness.py lists what
`--model_args` may hold. `--model hf` is transformers' program on the same checkpoint.
"""

import sys

from jaxrl_llm.fields import ConfigError


def main() -> None:
  try:
    from lm_eval.__main__ import cli_evaluate
  except ImportError as error:
    sys.exit(f"error: lm-eval is not installed ({error}). Fix: pip install -e '.[lm-eval]'.")
  from experiments.commands import lm_harness  # registers the model
  from jaxrl_llm.models import CheckpointError
  from jaxrl_llm.store.checkpoints import TornCheckpointsError
  if "--model" not in sys.argv and "--model_args" in sys.argv:
    sys.argv += ["--model", lm_harness.NAME]
  try:
    cli_evaluate()
  except (ConfigError, CheckpointError, TornCheckpointsError) as error:
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  main()
