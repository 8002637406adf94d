"""What a run says of its config before anything compiles."""

import dataclasses

import pytest
import tiny

from jaxrl_llm.config import ConfigError, from_dict
from jaxrl_llm.runs import trainer
from jaxrl_llm.wiring import setup


def config(preset: str, **updates):
  settings = tiny.get_config(preset)
  settings.updates.optimizer_batches = 1
  settings.updates.update(updates)
  return settings


def log_of(cfg, caplog) -> str:
  """What is logged of a run that stops before it builds anything."""
  caplog.clear()
  with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match="stop here"):
    patch.setattr(setup, "build", _stop)
    trainer.run(cfg, "nowhere")
  return caplog.text


def _stop(cfg):
  raise ConfigError("stop here")


@pytest.mark.parametrize("preset", ["reinforce", "rloo", "opo"])
@pytest.mark.parametrize(("key", "value"), [("optimizer_batches", 2), ("staleness", 1)])
def test_reinforce_off_policy_is_warned_of(preset, key, value, caplog):
  text = log_of(from_dict(config(preset, **{key: value})), caplog)
  assert text.count("WARNING") == 1 and "estimator.name = 'reinforce'" in text
  assert f"updates.{key} = {value}" in text and "Fix: " in text


def test_both_and_a_replaying_transform_are_named(caplog):
  settings = config("reinforce", optimizer_batches=2, staleness=3)
  settings.plugins, settings.transform.name = ("experiments.papers.pipo",), "pipo"
  text = log_of(from_dict(settings), caplog)
  for cause in ("updates.optimizer_batches = 2", "updates.staleness = 3",
                "transform.name = 'pipo'"):
    assert cause in text


def test_nothing_is_said_where_the_data_are_on_policy_or_weighed(caplog):
  assert log_of(from_dict(config("reinforce")), caplog) == ""
  assert log_of(from_dict(config("grpo", optimizer_batches=2, staleness=1)), caplog) == ""
  stale = from_dict(config("reinforce", staleness=1))
  weighed = dataclasses.replace(stale.correction, level="sequence")
  assert log_of(dataclasses.replace(stale, correction=weighed), caplog) == ""
