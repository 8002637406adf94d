"""What a config with PIPO refuses: its numbers without it, and statistics of the fresh batch."""

import pytest

from jaxrl_llm import presets
from jaxrl_llm.config import ConfigError, base_config, from_dict
from jaxrl_llm.wiring import setup


def config(**keys):
  settings = presets.apply(base_config(), "grpo")
  settings.update_from_flattened_dict(keys)
  return settings


@pytest.mark.parametrize(("keys", "parts"), [
    ({"transform.history": 4},
     ["transform.history = 4", "'none' does not read it", "what does: pipo"]),
    ({"estimator.name": "m2po", "transform.name": "pipo"}, ["transform.name = 'pipo'", "'m2po'"]),
])
def test_what_does_not_fit_is_refused(keys, parts):
  with pytest.raises(ConfigError) as refused:
    setup.resolve(from_dict(config(**keys)))
  assert all(part in str(refused.value) for part in parts), refused.value
