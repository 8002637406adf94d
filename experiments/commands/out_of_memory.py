"""What a run says when memory ran out: what it was for, and which keys lower it."""

import os
import re
import traceback
from pathlib import Path

from jaxrl_llm import config

PACKAGE = Path(config.__file__).parents[1]
FEWER_ROWS = "a smaller rollout.slots, rollout.prompts or rollout.max_new_tokens"
SMALLER_STEPS = "more updates.micro_batches, or a smaller updates.token_budget"
LESS_STATE = "parameters.train=lora, more devices in mesh.fsdp or mesh.tensor, or a smaller model"
# By the files on the way to where memory ran out, the first that fits: what it was for, and keys.
MEMORY = ((("models/hf/", "store/"), " of weights", LESS_STATE),
          (("runs/evaluate.py",), " in an evaluation", FEWER_ROWS),
          (("wiring/warm_start.py",), " in the warm start",
           f"more warm_start.micro_batches; {LESS_STATE}"),
          (("rollouts/", "wiring/sampler.py", "runs/rollout_batch.py"), " in the rollouts",
           FEWER_ROWS),
          (("training/", "wiring/learner.py", "wiring/scoring.py", "runs/iteration.py"),
           " in an update", f"{SMALLER_STEPS}; {LESS_STATE}"),
          (("",), "", f"{FEWER_ROWS}; {SMALLER_STEPS}; {LESS_STATE}"))


def line(error: BaseException) -> str:
  """Returns the line for an error of memory: its size, what it was for, and keys that lower it."""
  files = [os.path.relpath(frame.filename, PACKAGE)
           for frame in traceback.extract_tb(error.__traceback__)]
  purpose, keys = next((purpose, keys) for starts, purpose, keys in MEMORY
                       if any(file.startswith(starts) for file in files) or starts == ("",))
  text = " ".join(str(error).split())
  count = re.search(r"(\d+) bytes", text)
  size = f", {int(count[1]) / 2**30:.2f} GiB" if count else ""
  return (f"out of memory{purpose}{size}: {text[:300].rstrip('.')}. Fix: {keys}; "
          "experiments/plan.py counts what a run needs.")
