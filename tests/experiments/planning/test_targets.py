"""Names of targets and programs, and what a user reads where one is wrong."""

import importlib.util
import re

import jax
import planned_config
import pytest

from experiments.planning import abstract, programs, shapes, targets
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


@pytest.mark.parametrize("name", ["v5p:1000x1000x1000", "h100:1000000000", "v5e:2x2*1000000000"])
def test_a_target_beyond_all_that_are_sold_is_refused(name):
  with pytest.raises(ConfigError, match=rf"--target={re.escape(name)}: no target has more than"):
    targets.parse(name)


@pytest.mark.parametrize("name, extra", [("v5p:2x2x1", "plan-tpu"), ("h200:8", "plan-gpu")])
def test_a_compiler_that_is_absent_is_named_by_its_extra(monkeypatch, name, extra):
  monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
  with pytest.raises(ConfigError, match=rf"--target={name} .*pip install -e '\.\[{extra}\]'"):
    targets.describe(name)


def test_a_checkpoint_without_shapes_is_refused(tmp_path):
  cfg = planned_config.ready()
  for name, message in (("org/unknown", "Qwen/Qwen3-4B"), (str(tmp_path), "config.json")):
    with pytest.raises(ConfigError, match=message):
      shapes.with_shapes(cfg.model, name)


def test_published_shapes_keep_how_the_network_runs():
  cfg = planned_config.ready(model=dict(remat="full", compute_dtype="bfloat16"))
  model = shapes.with_shapes(cfg.model, "Qwen/Qwen3-4B")
  assert (model.num_layers, model.width, model.scan_layers) == (36, 2560, True)
  assert (model.remat, model.compute_dtype) == ("full", "bfloat16")


def test_programs_by_name():
  planned = abstract.plan(planned_config.ready(), jax.devices()[:4])
  names = [program.name for program in programs.iteration_programs(planned)]
  assert names[-1] == "step" and "score" in names
  assert [p.name for p in programs.iteration_programs(planned, ("step",))] == ["step"]
  with pytest.raises(ConfigError, match=r"no program 'stop'\. Allowed are .*step"):
    programs.iteration_programs(planned, ("stop",))
