"""Names of targets, and what a user reads where one is wrong."""

import re

import planned_config
import pytest

from experiments.planning import shapes, targets
from jaxrl_llm.config import ConfigError


@pytest.mark.parametrize("name, expected", [
    ("v5p:4x4x8", ("v5p", (4, 4, 8), 1)), ("v5e:1", ("v5e", (1,), 1)),
    ("v6e:2x4", ("v6e", (2, 4), 1)), ("h100:8", ("h100", (8,), 1)),
    ("v5p:2x2x2*2", ("v5p", (2, 2, 2), 2)),
])
def test_names(name, expected):
  assert targets.parse(name) == expected


@pytest.mark.parametrize("name", [
    "", "v5e", "v5litepod-16", "v5p:4x4", "v5e:4x4x4", "v5e:8", "h100:2x4", "tpu:1", "h100:0",
    "h100:8*2", "v5e:1*2", "v5p:2x2x2*0", "v5p:2x2x2x2*",
])
def test_a_wrong_name_is_told_the_format(name):
  with pytest.raises(ConfigError, match=rf"--target={re.escape(name)}: .*v5p:4x4x4 .*Fix: "):
    targets.parse(name)


def test_a_checkpoint_without_shapes_is_refused(tmp_path):
  cfg = planned_config.ready()
  for name, message in (("org/unknown", "Qwen/Qwen3-4B"), (str(tmp_path), "config.json")):
    with pytest.raises(ConfigError, match=message):
      shapes.with_shapes(cfg.model, name)
