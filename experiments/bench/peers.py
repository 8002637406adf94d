"""Times workload W in rounds of ours, google-tunix and TRL, each in a process of its own.

Each library has an environment of its own, in which tunix_grpo.py or trl_grpo.py of this folder
runs. Nothing is imported from the peers here, and this process starts no device.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

NAMES = {"ours": "jaxrl_llm", "tunix": "google-tunix", "trl": "TRL"}
HERE = Path(__file__).parent
# First steps that are not counted: they compile, or warm up.
UNSTEADY = {"tunix": 2, "trl": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  group = parser.add_argument_group("peers")
  group.add_argument("--peers", action="store_true", help="time the peers too, in turn with ours")
  group.add_argument("--tunix-python", help="Python of an environment with google-tunix")
  group.add_argument("--trl-python", help="Python of an environment with TRL")
  group.add_argument("--rounds", type=int, default=5, help="rounds of ours, tunix, TRL (default 5)")
  group.add_argument("--tunix-micro", default="2",
                     help="prompts, not rows, per micro-batch; of several, the fastest")
  group.add_argument("--trl-micro", default="8",
                     help="rows per micro-batch; of several, the fastest")


@dataclasses.dataclass(frozen=True)
class Timing:
  """Seconds of one process.

  Attributes:
    iteration: of each whole iteration that counts.
    generation: of each generation.
    ragged: of each generation with planted lengths; None if lengths cannot be planted, then the
      time of fixed lengths counts.
    ragged_iteration: of each whole iteration with planted lengths, or None.
  """

  iteration: list[float]
  generation: list[float]
  ragged: list[float] | None = None
  ragged_iteration: list[float] | None = None

  @property
  def median(self) -> float:
    return float(np.median(self.iteration))


def _peer(python: str, script: str, steps: int, flags: list[str]) -> Timing:
  """Returns the steady steps of a peer's script, run by the Python of the peer's environment."""
  environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
  with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "peer.json"
    command = [python, str(HERE / script), f"--json={out}", f"--steps={steps}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
      raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n"
                         f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    seconds = json.loads(out.read_text())
  return Timing(seconds["iteration"], seconds["generation"])


def time_ours(args, script: Path, micro: int | None) -> tuple[Timing, dict]:
  """Returns (timing, all numbers) of a fresh process that runs `script`."""
  with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "ours.json"
    command = [
        sys.executable, str(script), "--json", str(out),
        "--parts", "ragged_generation,iteration,ragged_iteration",
        *_flags(args, "reps", "dtype", "window", "prompts", "group", "prompt", "new", "devices"),
    ]
    command += ["--scan-layers"] * args.scan_layers + (["--micro", str(micro)] if micro else [])
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    result = json.loads(out.read_text())
  seconds = result["seconds"]
  timing = Timing(seconds["iteration"], seconds["iteration_generation"],
                  seconds["ragged_generation"], seconds["ragged_iteration"])
  return timing, result


def time_tunix(args, micro: int) -> Timing:
  first = UNSTEADY["tunix"]
  timing = _peer(args.tunix_python, "tunix_grpo.py", args.reps + first,
                 ["--reps=2", f"--micro={micro}", *_sizes(args)])
  return Timing(timing.iteration[first:], timing.generation)


def time_trl(args, micro: int) -> Timing:
  first = UNSTEADY["trl"]
  threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  timing = _peer(args.trl_python, "trl_grpo.py", args.reps + first,
                 [f"--threads={threads}", f"--micro={micro}", *_sizes(args)])
  return Timing(timing.iteration[first:], timing.generation[first:])


def _flags(args, *names: str) -> list[str]:
  return [text for name in names for text in (f"--{name}", str(getattr(args, name)))]


def _sizes(args) -> list[str]:
  return _flags(args, "prompts", "group", "prompt", "new")


def _best(timer, args, choices: str) -> tuple[int, dict[int, float]]:
  """Returns (micro-batch size, median seconds of each trial); a single choice needs no trial."""
  sizes = [int(size) for size in choices.split(",")]
  if len(sizes) == 1:
    return sizes[0], {}
  quick = argparse.Namespace(**{**vars(args), "reps": 2})
  trials = {size: timer(quick, size).median for size in sizes}
  return min(trials, key=trials.get), trials


def compare(args, script: Path) -> dict:
  """Returns all rounds, each of ours, tunix and TRL; a peer without its Python is left out."""
  timers = {name: timer for name, timer in (("tunix", time_tunix), ("trl", time_trl))
            if getattr(args, f"{name}_python")}
  if not timers:
    raise SystemExit("error: --peers needs --tunix-python or --trl-python or both")
  micro, trials = {"ours": args.micro}, {}
  for name, timer in timers.items():
    micro[name], trials[name] = _best(timer, args, getattr(args, f"{name}_micro"))
  if micro["ours"] is None:
    chosen = time_ours(argparse.Namespace(**{**vars(args), "reps": 1}), script, None)[1]
    micro["ours"], trials["ours"] = chosen["micro"], chosen["micro_trials"]
  rounds, ours = [], {}
  for index in range(args.rounds):
    timing, ours = time_ours(args, script, micro["ours"])
    once = {"ours": timing} | {name: timer(args, micro[name]) for name, timer in timers.items()}
    rounds.append({name: dataclasses.asdict(timing) for name, timing in once.items()})
    each = ", ".join(f"{NAMES[name]} {t.median:.2f} s" for name, t in once.items())
    leads = ", ".join(f"{name} {ratio:.2f}" for name, ratio in _ratios(rounds[-1]).items())
    print(f"round {index + 1} of {args.rounds}: {each}; faster peer / ours: {leads}", flush=True)
  return {
      "environment": ours["environment"],
      "shape": ours["shape"],
      "micro": micro,
      "micro_trials": trials,
      "reps": args.reps,
      "rounds": rounds,
      "ratios": [_ratios(r) for r in rounds],
      "ragged_new": ours["ragged_new"],
      "counts": ours["counts"],
  }


def _ratios(once: dict) -> dict[str, float]:
  """Returns the faster peer's median over ours within one round, by what is compared.

  With ragged lengths the same useful tokens count for all; a peer needs its fixed-length time for
  them.
  """
  ours, peers = once["ours"], [timing for name, timing in once.items() if name != "ours"]
  fastest = {part: min(np.median(timing[part]) for timing in peers)
             for part in ("iteration", "generation")}
  return {
      "iteration": float(fastest["iteration"] / np.median(ours["iteration"])),
      "generation": float(fastest["generation"] / np.median(ours["generation"])),
      "ragged generation": float(fastest["generation"] / np.median(ours["ragged"])),
      "ragged iteration": float(fastest["iteration"] / np.median(ours["ragged_iteration"])),
  }


def _trials(seconds: dict | None) -> str:
  if not seconds:
    return ""
  return " (" + ", ".join(f"{size}: {s:.2f} s" for size, s in seconds.items()) + ")"


def report(result: dict) -> str:
  """Returns one line per library over all rounds, then the ratios over the rounds."""
  env = result["environment"]
  units = {"ours": "micro-batches", "tunix": "prompts each", "trl": "rows each"}
  micro = ", ".join(f"{NAMES[name]} {size} {units[name]}{_trials(result['micro_trials'].get(name))}"
                    for name, size in result["micro"].items())
  lines = [
      "",
      f"jax {env['jax']} on {env['device']} ({env['backend']}), {env['cpus_usable']} of "
      f"{env['cpus']} CPUs",
      f"micro-batches: {micro}",
      "",
      f"{'whole iteration':<16}{'median':>9}{'min':>9}{'max':>9}{'tok/s':>9}"
      f"{'generation tok/s':>18}{'ragged*':>9}",
      *(_line(result, name) for name in result["rounds"][0]),
      "* generation of planted lengths, mean/max 0.4: useful tok/s; peers need their fixed-length "
      "time",
  ]
  for name in result["ratios"][0]:
    ratio = [each[name] for each in result["ratios"]]
    lines.append(f"{name}: speed of ours over the faster peer's, median {np.median(ratio):.2f}, "
                 f"min {min(ratio):.2f}, max {max(ratio):.2f} of {len(ratio)} rounds")
  for name, counts in result["counts"].items():
    lines.append(f"ours, {name} lengths: wasted slot-steps {counts['wasted_slot_steps']:.1%}, "
                 f"cache bytes read over needed {counts['read_over_needed']:.2f}")
  return "\n".join(lines)


def _line(result: dict, name: str) -> str:
  """Returns the line of one library: its seconds over all rounds, and rates at their medians."""
  every = {part: [s for once in result["rounds"] for s in once[name][part] or ()]
           for part in ("iteration", "generation", "ragged")}
  sizes, seconds = result["shape"], every["iteration"]
  rows, useful = sizes["prompts"] * sizes["group"], sum(result["ragged_new"])
  generation = np.median(every["generation"])
  ragged = np.median(every["ragged"]) if every["ragged"] else generation
  rate = rows * (sizes["prompt"] + sizes["new"]) / np.median(seconds)
  return (f"{NAMES[name]:<16}{np.median(seconds):>8.3f}s{min(seconds):>8.3f}s{max(seconds):>8.3f}s"
          f"{rate:>9.0f}{rows * sizes['new'] / generation:>18.0f}{useful / ragged:>9.0f}")
