"""Whom a slow tool keeps waiting: 16 rows of which one calls a tool that sleeps.

  python experiments/bench/tools.py
  python experiments/bench/tools.py --sleep 4 --rows 32 --turn 128 --json out.json

Every row has two turns of `--turn` tokens, and a tool's answer of 8 tokens between them. In a round
the engine draws
the same rows three times, in changing order: `awake`, where no tool sleeps; `asleep`, where that of
  row 0 does; and
`in step`, where it does and all other rows wait for it at the end of their turn, as they do where
turns are drawn batch by batch. A row's end is the moment at which the environment is asked what
follows its last turn. The first round compiles and is not counted. The delay of the others is the
end of the last of them less that of the same round, awake.
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
  """Ends each turn at a number of tokens; row 0's tool sleeps, and where `together`, all tools end
  at once.

  Attributes:
    ends: seconds since `begin` at which each row ended.
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
    """Nothing is held."""


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--rows", type=int, default=16, help="default 16")
  parser.add_argument("--turn", type=int, default=64, help="tokens of a turn (default 64)")
  parser.add_argument("--sleep", type=float, default=2.0, help="seconds (default 2)")
  parser.add_argument("--chunk", type=int, default=8, help="decode steps per call (default 8)")
  parser.add_argument("--reps", type=int, default=5, help="measured rounds (default 5)")
  parser.add_argument("--json", type=Path, help="file that all numbers are written to")
  args = parser.parse_args()
  for name, least in (("rows", 2), ("turn", 1), ("sleep", 0), ("chunk", 1), ("reps", 1)):
    if getattr(args, name) < least:
      parser.error(f"--{name} {getattr(args, name)}: allowed are {least} and more")
  return args


def once(args: argparse.Namespace, model: Model, params, mode: str) -> dict:
  """One generation: seconds of all of it, and the end of each row."""
  ids = np.random.default_rng(0).integers(11, model.config.vocab_size,
                                          (args.rows, PROMPT)).astype(np.int32)
  row = np.arange(args.rows, dtype=np.int32)
  cfg = engine.EngineConfig(max_new_tokens=2 * args.turn + len(ANSWER), slots=args.rows,
                            chunk=args.chunk, stop_ids=(model.config.vocab_size,))  # never drawn
  environment = TwoTurns(args.rows, args.turn, args.sleep * (mode != "awake"), mode == "in step")
  rollout, stats = engine.run(params,
                              PromptBatch(ids, np.full(args.rows, PROMPT, np.int32), row, row),
                              jax.random.key(0), Sampling.of(1.0), model=model, cfg=cfg,
                              environment=environment, max_turns=2, tool_workers=args.rows)
  jax.block_until_ready(rollout)
  seconds = time.perf_counter() - environment.begin
  others = [environment.ends[r] for r in range(1, args.rows)]
  return {
      "seconds": seconds,
      "row_0": environment.ends[0],
      "others_first": min(others),
      "others_last": max(others),
      "stats": dataclasses.asdict(stats)
  }


def run(args: argparse.Namespace) -> dict:
  """All numbers of all rounds."""
  model = Model(
      ModelConfig(vocab_size=2048, width=256, num_layers=6, num_heads=8, num_kv_heads=4,
                  head_dim=32, mlp_width=768))
  params = model.init(jax.random.key(0))
  found = {mode: [] for mode in MODES}
  for index in range(args.reps + 1):
    for mode in np.roll(MODES, index).tolist():
      result = once(args, model, params, mode)
      found[mode] += [result] if index else []
  chosen = {name: getattr(args, name) for name in ("rows", "turn", "sleep", "chunk", "reps")}
  return {"environment": measure.environment(), **chosen, "prompt": PROMPT, "rounds": found}


def report(result: dict) -> str:
  rounds, env = result["rounds"], result["environment"]
  middle = lambda mode, key: statistics.median(entry[key] for entry in rounds[mode])
  lines = [
      f"jax {env['jax']} on {env['device']}, {env['cpus_usable']} of {env['cpus']} CPUs, load "
      f"{env['load_average'][0]:.1f}; {result['rows']} rows, row 0 sleeps {result['sleep']:.1f} s; "
      "medians of "
      f"{result['reps']}, seconds",
      f"{'':<10}{'all':>8}{'row 0':>9}{'others, first':>15}{'others, last':>14}{'delay of others':>17}"
  ]
  for mode in MODES:
    delay = statistics.median(a["others_last"] - b["others_last"] for a, b in
                              zip(rounds[mode], rounds["awake"], strict=True))
    lines.append(
        f"{mode:<10}{middle(mode, 'seconds'):>8.3f}{middle(mode, 'row_0'):>9.3f}"
        f"{middle(mode, 'others_first'):>15.3f}{middle(mode, 'others_last'):>14.3f}{delay:>17.3f}")
  return "\n".join(lines)


def main() -> None:
  args = arguments()
  result = run(args)
  print(report(result))
  if args.json:
    args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
  main()
