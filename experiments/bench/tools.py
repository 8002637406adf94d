"""Measures whom a slow tool keeps waiting: 16 rows, of which one calls a tool that sleeps.

  python experiments/bench/tools.py
  python experiments/bench/tools.py --sleep 4 --rows 32 --turn 128 --json out.json

Every row has two turns of `--turn` tokens and between them a tool's answer of 8 tokens. A round
generates the same rows three times, in changing order:

  awake     no tool sleeps
  asleep    the tool of row 0 sleeps
  in step   it sleeps, and all other rows wait for it at the end of their turn, as they would if
            turns were generated batch by batch

A row ends when the environment is asked what follows its last turn. The delay of the others is the
end of the last of them, minus the same in the round's `awake`. The first round compiles and is not
counted.
"""

import argparse
import dataclasses
import json
import statistics
import threading
import time
from pathlib import Path

import jax
import numpy as np

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import engine
from jaxrl_llm.rollouts.environment import Continue, Stop
from jaxrl_llm.types import STOP_ENVIRONMENT, PromptBatch, Sampling

import measure

ANSWER = tuple(range(3, 11))
PROMPT = 32  # tokens
MODES = ("awake", "asleep", "in step")


class TwoTurns:
  """An environment that ends each turn at a number of tokens and lets the tool of row 0 sleep.

  With `together` all tools end at the same time.

  Attributes:
    ends: row id to the second, since `begin`, at which the row ended.
  """

  def __init__(self, rows: int, tokens: int, sleep: float, together: bool):
    self.tokens, self.sleep = tokens, sleep
    self.barrier = threading.Barrier(rows) if together else None
    self.begin, self.ends = time.perf_counter(), {}

  def turn_end(self, turn_ids, seen=0):
    return self.tokens if len(turn_ids) >= self.tokens else None

  def step(self, row_id, turn_ids, last=False):
    if last:
      self.ends[row_id] = time.perf_counter() - self.begin
      return Stop(STOP_ENVIRONMENT)
    if row_id == 0:
      time.sleep(self.sleep)
    if self.barrier:
      self.barrier.wait()
    return Continue(ANSWER)

  def close(self):
    """There is nothing to close."""


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--rows", type=int, default=16, help="rows (default 16)")
  parser.add_argument("--turn", type=int, default=64, help="tokens of a turn (default 64)")
  parser.add_argument("--sleep", type=float, default=2.0,
                      help="seconds that the tool sleeps (default 2)")
  parser.add_argument("--chunk", type=int, default=8, help="decode steps per call (default 8)")
  parser.add_argument("--reps", type=int, default=5, help="measured rounds (default 5)")
  parser.add_argument("--json", type=Path, help="file of all numbers")
  args = parser.parse_args()
  for name, least in (("rows", 2), ("turn", 1), ("sleep", 0), ("chunk", 1), ("reps", 1)):
    if getattr(args, name) < least:
      parser.error(f"--{name} {getattr(args, name)}: allowed are {least} and more")
  return args


def once(args: argparse.Namespace, model: Model, params, mode: str) -> dict:
  """Runs one generation; returns its seconds and the ends of the rows."""
  rng, row = np.random.default_rng(0), np.arange(args.rows, dtype=np.int32)
  ids = rng.integers(11, model.config.vocab_size, (args.rows, PROMPT)).astype(np.int32)
  prompts = PromptBatch(ids, np.full(args.rows, PROMPT, np.int32), row, row)
  never = (model.config.vocab_size,)  # beyond the vocabulary
  cfg = engine.EngineConfig(max_new_tokens=2 * args.turn + len(ANSWER), slots=args.rows,
                            chunk=args.chunk, stop_ids=never)
  environment = TwoTurns(args.rows, args.turn, args.sleep * (mode != "awake"), mode == "in step")
  rollout, stats = engine.run(params, prompts, jax.random.key(0), Sampling.of(1.0), model=model,
                              cfg=cfg, environment=environment, max_turns=2,
                              tool_workers=args.rows)
  jax.block_until_ready(rollout)
  seconds = time.perf_counter() - environment.begin
  others = [environment.ends[r] for r in range(1, args.rows)]
  return {
      "seconds": seconds,
      "row_0": environment.ends[0],
      "others_first": min(others),
      "others_last": max(others),
      "stats": dataclasses.asdict(stats),
  }


def run(args: argparse.Namespace) -> dict:
  """Returns all numbers of all rounds."""
  model = Model(
      ModelConfig(vocab_size=2048, width=256, num_layers=6, num_heads=8, num_kv_heads=4,
                  head_dim=32, mlp_width=768))
  params = model.init(jax.random.key(0))
  rounds = {mode: [] for mode in MODES}
  for index in range(args.reps + 1):
    for mode in np.roll(MODES, index).tolist():
      result = once(args, model, params, mode)
      rounds[mode] += [result] if index else []
  chosen = {name: getattr(args, name) for name in ("rows", "turn", "sleep", "chunk", "reps")}
  return {"environment": measure.environment(), **chosen, "prompt": PROMPT, "rounds": rounds}


def report(result: dict) -> str:
  """Returns medians as text."""
  rounds, env = result["rounds"], result["environment"]
  columns = ("seconds", "row_0", "others_first", "others_last")
  lines = [
      f"jax {env['jax']} on {env['device']}, {env['cpus_usable']} of {env['cpus']} CPUs, load "
      f"{env['load_average'][0]:.1f}; {result['rows']} rows, row 0 sleeps {result['sleep']:.1f} s; "
      f"medians of {result['reps']}, seconds",
      f"{'':<10}{'all':>8}{'row 0':>9}{'others, first':>15}{'others, last':>14}"
      f"{'delay of others':>17}",
  ]
  for mode in MODES:
    pairs = zip(rounds[mode], rounds["awake"], strict=True)
    delay = statistics.median(a["others_last"] - b["others_last"] for a, b in pairs)
    seconds, row_0, first, last = (statistics.median(entry[name] for entry in rounds[mode])
                                   for name in columns)
    lines.append(f"{mode:<10}{seconds:>8.3f}{row_0:>9.3f}{first:>15.3f}{last:>14.3f}{delay:>17.3f}")
  return "\n".join(lines)


def main() -> None:
  args = arguments()
  result = run(args)
  print(report(result))
  if args.json:
    args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
  main()
