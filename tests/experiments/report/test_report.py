"""The report while a run goes on: when it is refreshed, and that it never disturbs the run."""

import types

import pytest

from experiments.report import html, report
from jaxrl_llm.runs.evaluate import Evaluation
from jaxrl_llm.runs.observers import Observed, Observers

EVALUATION = Evaluation([], None, [], None, {"eval/accuracy": 0.5})


class Clock:
  """Time that passes only by what the test says."""

  def __init__(self):
    self.now = 0.0

  def perf_counter(self):
    return self.now


@pytest.fixture
def report_case(tmp_path, monkeypatch):
  """A Report whose refresh takes 2 seconds; (report, clock, what was written)."""
  clock, written = Clock(), []

  def write(folder, status="running"):
    clock.now += 2.0
    written.append(status)
    return str(folder / "report.html")

  monkeypatch.setattr(report, "time", clock)
  monkeypatch.setattr(html, "write_report", write)
  monkeypatch.setattr(report, "samples_of", lambda *_: [])
  asked = types.SimpleNamespace(task=types.SimpleNamespace(tokenizer=None), problems=[])
  loop = types.SimpleNamespace(schedule=types.SimpleNamespace(iterations=1000), learner=None)
  run = Observed(loop, asked, dict, tmp_path)
  return report.Report(run), clock, written


def of_run(shown) -> Observers:
  return Observers(shown.run, [lambda _: shown])


@pytest.mark.parametrize("spacing, least, most", [(report.SPACING, 0.04, 0.05), (0, 0.5, 1.0)])
def test_refreshes_take_a_twentieth_of_the_time(report_case, monkeypatch, spacing, least, most):
  """In a run that is evaluated every second; one at each evaluation would take more."""
  monkeypatch.setattr(report, "SPACING", spacing)
  shown, clock, written = report_case
  for iteration in range(400):
    shown.evaluated(iteration, None, EVALUATION)
    clock.now += 1.0
  assert least < 2.0 * (len(written) - 1) / clock.now <= most


def test_the_first_report_waits_for_the_first_iteration(report_case, monkeypatch):
  """Its completions before are those of the first evaluation, which the run makes anyway."""
  shown, _, written = report_case
  monkeypatch.setattr(report.evaluate, "evaluate", None)
  shown.evaluated(0, None, EVALUATION)
  assert shown._before is EVALUATION
  assert not written  # the plots' import would stand before the first iteration
  for _ in range(2):
    shown.rested()
  assert written == ["running"]


def test_the_first_report_reads_no_parameters(report_case, monkeypatch):
  """The completions are the start's; its parameters would be a third copy beside an update."""
  shown, _, written = report_case

  def unexpected():
    raise AssertionError("the parameters of the start were read")

  shown.run = shown.run._replace(start_params=unexpected)
  shown.evaluated(0, None, EVALUATION)
  shown.rested()
  assert written == ["running"]
  written.clear()
  shown._written = None
  shown.evaluated(5, {}, EVALUATION)  # fails, and says so in a warning
  assert not written


def test_a_resumed_run_has_no_first_report(report_case, monkeypatch):
  shown, _, written = report_case
  monkeypatch.setattr(shown, "_evaluate", lambda params: EVALUATION)
  shown.rested()
  assert not written
  shown.evaluated(5, {}, EVALUATION)
  assert written == ["running"]


def test_an_interruption_is_written_and_passed_on(report_case):
  shown, _, written = report_case
  for error in (KeyboardInterrupt(), SystemExit(143), RuntimeError("loss = nan")):
    with pytest.raises(type(error)) as raised, of_run(shown).until_interrupted():
      raise error
    assert raised.value is error and written.pop() == f"interrupted by {type(error).__name__}"
  with of_run(shown).until_interrupted():
    pass
  assert not written


def test_a_report_that_fails_warns_and_hides_no_error(report_case, monkeypatch, caplog):
  shown, *_ = report_case

  def fail(*_):
    raise OSError("disk full")

  monkeypatch.setattr(html, "write_report", fail)
  shown.evaluated(0, None, EVALUATION)
  shown.rested()
  assert "disk full" in caplog.text
  with pytest.raises(KeyError, match="the cause"), of_run(shown).until_interrupted():
    raise KeyError("the cause")
