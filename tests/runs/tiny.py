"""The smallest run that passes through every stage, as a config file for the real command.

Its policy learns something within seconds: rewards differ within a group, so that every update
moves the parameters. With COMPILE_LOG=path in the environment, each compilation of the process adds
a line {"program", "time"} to that file. With HOLD=n:path, the run waits before it writes the
metrics of iteration n until that file exists: a test may take its time to end the run before. With
FILE_BYTES=n, no file can grow beyond that.
"""

import json
import os
import resource
import time

import jax

from jaxrl_llm import presets
from jaxrl_llm.config import base_config
from jaxrl_llm.reporting.writers import MetricsWriter

COMPILED = "/jax/core/compile/backend_compile_duration"
ITERATIONS = 6


def get_config(preset: str = "ctpo"):
  if "COMPILE_LOG" in os.environ:
    _log_compilations(os.environ["COMPILE_LOG"])
  hold_on()
  if limit := int(os.environ.get("FILE_BYTES", 0)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
  config = base_config()
  config.iterations = ITERATIONS
  config.model.update(vocab_size=17, width=16, num_layers=1, num_heads=1, num_kv_heads=1,
                      head_dim=8, mlp_width=16)
  config.task.update(num_terms=2, worked_share=0.0, heldout_problems=8)
  config.rollout.update(prompts=16, group_size=4, max_prompt_tokens=4, max_new_tokens=6, window=6)
  config.updates.optimizer_batches = 2
  config.optimizer.learning_rate = 1e-2
  config.warm_start.update(steps=60, batch_size=16, learning_rate=1e-2)
  config.evaluation.every = 3
  config.checkpoint.every = 2
  return presets.apply(config, preset)


def hold_on() -> None:
  if "HOLD" not in os.environ:
    return
  number, _, path = os.environ["HOLD"].partition(":")
  write = MetricsWriter.write

  def held(self, iteration, values):
    while iteration >= int(number) and not os.path.exists(path):
      time.sleep(0.01)
    write(self, iteration, values)

  MetricsWriter.write = held


def _log_compilations(path: str) -> None:
  open(path, "a").close()

  def write(event: str, duration: float, fun_name: str = "", **_):
    if event == COMPILED:
      with open(path, "a") as file:
        file.write(json.dumps({"program": fun_name, "time": time.time()}) + "\n")

  jax.monitoring.register_event_duration_secs_listener(write)
