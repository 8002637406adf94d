"""By the command: best checkpoint, early stopping, reports of interrupted runs, profiles."""

import re
import signal

import command
import numpy as np
import pytest
import tiny
from test_resume import kill_when

from jaxrl_llm.models import hf
from jaxrl_llm.store.checkpoints import BEST, iterations

EACH = "evaluation.every=1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def full_run(folder):
  """A run with an evaluation, and a checkpoint, after each iteration; the third is profiled."""
  command.succeed(command.start(folder / "whole", EACH, "checkpoint.every=1", "profile=3"))
  return folder / "whole"


def accuracies(workdir) -> list[float]:
  return [line["eval/accuracy"] for line in command.metrics_lines(workdir)]


@pytest.mark.slow
def test_the_best_parameters_outlive_their_checkpoint(full_run, folder):
  best = int(np.argmax(accuracies(full_run)))
  assert command.checkpoint_iterations(full_run) == [tiny.ITERATIONS - 1, tiny.ITERATIONS]
  assert iterations(full_run, BEST) == [best]
  assert best < tiny.ITERATIONS - 1, "the newest checkpoints are the best ones: nothing is shown"
  for which, iteration in (("best", best), ("latest", tiny.ITERATIONS)):
    done = command.succeed(command.launch("export", f"--workdir={full_run}",
                                          f"--checkpoint={which}", f"--out={folder / which}"))
    assert f"iteration {iteration} of" in done.stdout
  kept, last = (hf.load_pretrained(folder / which)[1] for which in ("best", "latest"))
  assert np.any(np.asarray(kept["embedding"]) != np.asarray(last["embedding"]))


@pytest.mark.nightly
def test_a_killed_run_ends_as_early_and_with_the_same_best(full_run, folder):
  """The whole run tells where patience ends it."""
  patience, values = 2, accuracies(full_run)
  stop = next(i for i in range(1, len(values))
              if i - int(np.argmax(values[:i + 1])) == patience)
  assert 2 < stop < tiny.ITERATIONS, "patience does not end this run early"
  workdir, flags = folder / "killed", (EACH, f"evaluation.patience={patience}")
  begin = lambda **more: command.start(workdir, *flags, **more)
  kill_when(begin(environment=command.hold(3)),
            lambda: len(command.metrics_lines(workdir)) > 2, 0.0)
  command.succeed(begin())
  assert command.timeless(workdir) == command.timeless(full_run)[:stop + 1]
  assert iterations(workdir, BEST) == [int(np.argmax(values[:stop + 1]))]
  assert command.checkpoint_iterations(workdir)[-1] == stop
  report = (workdir / "report.html").read_text()
  assert f"iteration {stop} of {tiny.ITERATIONS}: ended early" in report
  command.succeed(begin())
  assert command.timeless(workdir) == command.timeless(full_run)[:stop + 1], (
      "it went on after its end")


@pytest.mark.slow
def test_an_interrupted_run_has_its_report(folder):
  """As one that got SIGTERM: parallel/test_faults.py."""
  workdir = folder / "interrupted"
  process = command.start(workdir, EACH, "iterations=5000", "checkpoint.every=5000")
  try:
    command.wait_for(lambda: len(command.metrics_lines(workdir)) >= 4, process)
    during = (workdir / "report.html").read_text()
    process.send_signal(signal.SIGINT)
    done = command.finish(process)
  finally:
    process.kill()
  assert re.search(r"iteration [0-9]+ of 5000: running", during) and "</html>" in during
  assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr
  after = (workdir / "report.html").read_text()
  assert "interrupted by KeyboardInterrupt" in after
  logged = int(re.search(r"iteration ([0-9]+) of 5000", after)[1])
  assert logged == command.metrics_lines(workdir)[-1]["iteration"] >= 3
  assert (workdir / "curves.png").exists() and (workdir / "samples.json").exists()


@pytest.mark.slow
def test_a_profile_is_in_the_folder(full_run):
  assert [path.name for path in (full_run / "profile").iterdir()] == ["iteration_00003"]
  assert list((full_run / "profile").rglob("*.xplane.pb"))
