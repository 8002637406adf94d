"""A run without held-out problems trains, and a fix that a message names is not refused next."""

import json
import logging

import pytest
import tiny

from experiments.report import OBSERVERS
from jaxrl_llm.config import ConfigError, from_dict
from jaxrl_llm.runs import trainer
from jaxrl_llm.tasks import make_task
from jaxrl_llm.wiring import evaluation_sets, setup


def config(heldout=0, **sections):
  values = tiny.get_config("grpo")
  values.task.heldout_problems = heldout
  for name, keys in sections.items():
    values[name].update(keys)
  return from_dict(values)


def test_no_other_key_is_asked_for(caplog):
  cfg = setup.resolve(config())
  assert cfg.checkpoint.best == "none" and setup.resolve(cfg) == cfg, "a run that goes on agrees"
  task = make_task(cfg.task, 0, 2)
  with caplog.at_level(logging.WARNING):
    assert evaluation_sets.make_sets(cfg, task, needed=False) == []
  assert "nothing is evaluated during the run" in caplog.text
  with pytest.raises(ConfigError, match=r"nothing is evaluated. Fix: task.heldout_problems >= 1"):
    evaluation_sets.make_sets(cfg, task)
  assert setup.resolve(config(8)).checkpoint.best == "eval/accuracy"


@pytest.mark.parametrize("keys, message, accepted", [
    ({"checkpoint": {"best": "eval/length"}},
     r"checkpoint.best = 'eval/length' with task.heldout_problems .* Fix: checkpoint.best=none,",
     {"checkpoint": {"best": "none"}}),
    ({"evaluation": {"patience": 3}},
     r"best = 'eval/accuracy' and evaluation.patience = 3 with .* Fix: checkpoint.best=none and "
     r"evaluation.patience=0,", {"checkpoint": {"best": "none"}, "evaluation": {"patience": 0}}),
])
def test_what_waits_for_an_evaluation_is_refused_with_a_fix_that_is_accepted(keys, message,
                                                                             accepted):
  with pytest.raises(ConfigError, match=message) as error:
    setup.resolve(config(**keys))
  assert "log ," not in str(error.value), "the list of metrics would be empty"
  setup.resolve(config(**accepted))


@pytest.mark.parametrize("patience, fix", [(0, "or none."),
                                           (3, "or none with evaluation.patience=0.")])
def test_the_fix_for_an_unknown_metric_is_accepted(patience, fix):
  with pytest.raises(ConfigError, match=f"evaluations log eval/accuracy.*{fix}"):
    setup.resolve(config(8, checkpoint={"best": "eval/acuracy"},
                         evaluation={"patience": patience}))
  setup.resolve(config(8, checkpoint={"best": "none"}))


@pytest.mark.slow  # compiles a run
def test_the_run_trains_and_goes_on(tmp_path, capsys):
  cfg = config(optimizer={"learning_rate": 1e-3},
               warm_start={"steps": 0, "batch_size": 64, "learning_rate": 1e-3})
  assert trainer.run(cfg, tmp_path, OBSERVERS) == {}
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert [line["iteration"] for line in lines] == list(range(tiny.ITERATIONS + 1))
  assert not any(key.startswith("eval/") for line in lines for key in line)
  assert not (tmp_path / "best").exists() and (tmp_path / "report.html").exists()
  capsys.readouterr()
  assert trainer.run(cfg, tmp_path, OBSERVERS) == {}
  assert "report.html" in capsys.readouterr().out
