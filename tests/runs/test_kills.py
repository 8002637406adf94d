"""A run that is killed again and again, inside its writes too, is the one that never was."""

import json
import os
import random
import signal
from pathlib import Path

import command
import numpy as np
import orbax.checkpoint as ocp
import pytest

CHAINS = int(os.environ.get("JAXRL_LLM_TEST_KILLS", "1"))  # runs of each kind that are killed
CONFIG = "tests/runs/killed.py"
SHORT = ("iterations=6", "checkpoint.every=1", "writer.name=none", "warm_start.steps=8")
# Of each kind: module and preset, and what differs from it.
KINDS = {
    "ctpo": ("tiny:ctpo",),
    "pipo, kept rollouts": ("tiny:grpo", "plugins=experiments.papers.pipo", "transform.name=pipo",
                            "rollouts.every=2", "rollouts.keep=2", "rollouts.rows=8"),
    "stale, drawn ahead": ("tiny:grpo", "updates.staleness=1", "updates.overlap=True"),
    "adapters, drawn again": ("tiny:grpo", "parameters.train=lora", "updates.staleness=2",
                              "dynamic_sampling.enabled=True", "dynamic_sampling.max_draws=400",
                              "rollout.prompts=4"),
    "critic": ("tiny:ppo_critic",),
    "tools": ("tiny_tools:ctpo", "warm_start.steps=100", "iterations=4"),
}
MOST = 40  # starts of one run


def start(workdir: Path, kind: str, **environment: str):
  config, *overrides = KINDS[kind]
  overrides = dict(item.split("=") for item in (*SHORT, *overrides))
  return command.start(workdir, *(f"{key}={value}" for key, value in overrides.items()),
                       config=f"{CONFIG}:{config}", environment=environment)


def undisturbed(workdir: Path, kind: str) -> dict[str, int]:
  """Makes a run that nothing kills; returns its calls by folder, in an iteration."""
  calls = workdir.with_name("calls")
  command.succeed(start(workdir, kind, CALLS=str(calls)))
  lines = calls.read_text().splitlines()
  iterations = len(command.metrics_lines(workdir))
  return {folder: max(2, lines.count(folder) // iterations) for folder in set(lines)}


def killed(workdir: Path, kind: str, calls: dict[str, int], chance: random.Random) -> list[str]:
  """Starts a run until it ends by itself; returns in which folders' writes it was killed."""
  places: list[str] = []
  for turn in range(MOST):
    place = ("checkpoints", "rollouts", "after")[turn % 3]
    plan = {"folder": place, "call": chance.randint(1, 2 * calls.get(place, 1)),
            "delay": chance.choice([0.0, chance.uniform(0.0, 0.02)])}
    plan = {"after": chance.uniform(0.0, 4.0)} if place == "after" else plan
    done = command.finish(start(workdir, kind, KILL=json.dumps(plan)))
    if done.returncode == 0:
      return places
    assert done.returncode == -signal.SIGKILL, (plan, done.stderr)
    places.append(place)
  raise AssertionError(f"it did not come to its end: {places}")


def leaves(folder: Path) -> dict[str, np.ndarray]:
  """The arrays of a saved tree, by their paths."""
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    tree = checkpointer.restore(folder.resolve())
  flat, out = [("", tree)], {}
  while flat:
    path, node = flat.pop()
    if isinstance(node, (dict, list, tuple)):
      pairs = node.items() if isinstance(node, dict) else enumerate(node)
      flat += [(f"{path}/{key}", child) for key, child in pairs]
    else:
      out[path] = np.asarray(node)
  return out


def differences(workdir: Path, other: Path) -> list[str]:
  """What two finished runs left that differs, but for times."""
  differing = []
  if command.timeless(workdir) != command.timeless(other):
    differing.append("metrics")
  if command.rollout_contents(workdir) != command.rollout_contents(other):
    differing.append("rollouts")
  saved = [command.checkpoint_iterations(folder) for folder in (workdir, other)]
  if saved[0] != saved[1]:
    return [*differing, f"checkpoints: {saved}"]
  best = [sorted(path.name for path in folder.glob("best/*")) for folder in (workdir, other)]
  if best[0] != best[1]:
    return [*differing, f"best: {best}"]
  for place in (*(f"checkpoints/{number}/default" for number in saved[0]),
                *(f"best/{name}" for name in best[0])):
    mine, theirs = leaves(workdir / place), leaves(other / place)
    if mine.keys() != theirs.keys() or any(mine[name].tobytes() != theirs[name].tobytes()
                                           for name in mine):
      differing.append(place)
  return differing


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_in_its_writes_is_the_whole_run(kind, tmp_path):
  calls = undisturbed(tmp_path / "undisturbed", kind)
  for seed in range(CHAINS):
    workdir = tmp_path / f"killed{seed}"
    places = killed(workdir, kind, calls, random.Random(f"{kind} {seed}"))
    assert differences(workdir, tmp_path / "undisturbed") == [], places
  assert places, "nothing was killed"
  lines = (workdir / "metrics.jsonl").read_text().splitlines(True)
  (workdir / "metrics.jsonl").write_text("".join(lines[:-1]))
  assert differences(workdir, tmp_path / "undisturbed") == ["metrics"], "the comparison is blind"
