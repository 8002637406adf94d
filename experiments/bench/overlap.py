"""Times an iteration whose verifier sleeps, with and without `updates.overlap`.

  python experiments/bench/overlap.py
  python experiments/bench/overlap.py --sleep 0.5 --width 128 --json out.json

With overlap the next batch is sampled during the updates. The policy is small and untrained, the
task sums of two digits, on the first device, with `updates.staleness` = 1. The verifier sleeps once
per batch and then answers as usual. Both settings take turns in one process, so that a slow moment
of the machine meets both. A repetition is `--count` iterations after one that is not counted. As in
training, the metrics of an iteration are fetched after the next one is dispatched.

The ratio is time without overlap over time with it. At most one batch is sampled ahead, so on one
device the ratio cannot exceed (generation + verification + training) / (generation + the longer of
the other two).
"""

import argparse
import contextlib
import json
import time
from pathlib import Path

import jax
import numpy as np

from jaxrl_llm import presets
from jaxrl_llm.config import base_config, from_dict
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.overlap import Ahead
from jaxrl_llm.runs.run_state import RunState, first_state
from jaxrl_llm.types import Params
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.learner import Start
from jaxrl_llm.wiring.loop import Loop, make_loop

import measure

BATCH_TIMES = ("time/rollout", "time/verify", "time/waited")


class Sleeping:
  """A task whose verification of a batch takes `seconds` longer."""

  def __init__(self, task, seconds: float):
    self._task, self._seconds = task, seconds

  def __getattr__(self, name):
    return getattr(self._task, name)

  def rewards(self, problems, completions):
    time.sleep(self._seconds)
    return self._task.rewards(problems, completions)


def build(args: argparse.Namespace) -> setup.Built:
  config = base_config()
  config.iterations = 10**6
  config.model.update(vocab_size=17, width=args.width, num_layers=args.layers, num_heads=4,
                      num_kv_heads=4, head_dim=args.width // 4, mlp_width=2 * args.width)
  config.task.update(num_terms=2, worked_share=0.0, heldout_problems=8)
  config.rollout.update(prompts=args.prompts, group_size=args.group, max_prompt_tokens=4,
                        max_new_tokens=args.new, window=args.new)
  config.updates.update(optimizer_batches=4, staleness=1, overlap=True)
  presets.apply(config, "grpo")
  built = setup.build(setup.resolve(from_dict(config)), jax.devices()[:1])
  return built._replace(task=Sleeping(built.task, args.sleep))


def repetition(loop: Loop, run: RunState, ref_params: Params, count: int, ahead: Ahead | None):
  """Returns (seconds of an iteration, mean of `count`; the last one's values; the new run)."""
  pending = None
  for index in range(count + 1):
    run, steps, values, _ = iterate(loop, run, ref_params, index + 1, ahead)
    if pending is not None:
      jax.device_get(pending)
    if index == 0:
      begin = time.perf_counter()
    pending = steps
  seconds = (time.perf_counter() - begin) / count
  jax.block_until_ready(run.state)
  return seconds, values, run


def compare(loop: Loop, reps: int, count: int) -> dict:
  """Times repetitions without and with overlap in turn, after one of each that compiles.

  `draws` has the seconds that the parts of the last rollout batch of each repetition took.
  """
  learner = loop.learner
  start = Start(learner.model.init(jax.random.key(0)), None)
  run = first_state(learner, start)
  seconds, batches = {"without": [], "with": []}, []
  for rep in range(reps + 1):
    for way, times in seconds.items():
      overlapped = way == "with"
      with Ahead(loop.source) if overlapped else contextlib.nullcontext() as ahead:
        taken, values, run = repetition(loop, run, start.params, count, ahead)
      if rep:
        times.append(taken)
        batches.append({"way": way} | {name: values.get(name) for name in BATCH_TIMES})
  medians = {way: float(np.median(times)) for way, times in seconds.items()}
  return {
      "seconds": seconds,
      "medians": medians,
      "ratio": medians["without"] / medians["with"],
      "draws": batches,
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  sizes = {"reps": 5, "count": 4, "prompts": 16, "group": 8, "new": 32, "width": 64, "layers": 2}
  for name, default in sizes.items():
    parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
  parser.add_argument("--sleep", type=float, default=0.3,
                      help="seconds that the verifier sleeps per batch (default 0.3)")
  parser.add_argument("--json", type=Path, help="file of all numbers")
  args = parser.parse_args()
  result = compare(make_loop(*build(args)), args.reps, args.count)
  result |= {
      "environment": measure.environment(),
      "sleep": args.sleep,
      "sizes": {name: getattr(args, name) for name in sizes},
  }
  for way, times in result["seconds"].items():
    print(f"{way:<8} overlap: {result['medians'][way]:.3f} s an iteration "
          f"({min(times):.3f} to {max(times):.3f})")
  print(f"without / with: {result['ratio']:.2f}")
  if args.json:
    args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
  main()
