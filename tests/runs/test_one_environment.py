"""The tool of a run: made once, shared by training and evaluation, and gone at every end."""

import os

import command
import jax
import jax.numpy as jnp
import pytest
from flax.traverse_util import flatten_dict
from processes import gone

from experiments.tasks.tool_arithmetic import ALPHABET, ToolArithmetic
from jaxrl_llm import tasks
from jaxrl_llm.config import base_config, from_dict
from jaxrl_llm.rollouts import engine, environment
from jaxrl_llm.rollouts.tools import Calculator, PythonSandbox
from jaxrl_llm.runs import trainer
from jaxrl_llm.wiring import setup

WORKERS = 3
NO_TOOL = {"rollout.max_turns": 0, "rollout.max_tool_tokens": 256, "rollout.tool_workers": 4}
pools = []


class Counted(PythonSandbox):
  def __init__(self, **options):
    super().__init__(**options | {"timeout": 60.0})
    pools.append(self)


class Programs(ToolArithmetic):
  tool = "python"


class SampledError(Exception):
  """Instead of a rollout."""


@pytest.fixture(autouse=True)
def counted():
  pools.clear()
  tasks.TASKS["tool_arithmetic"] = Programs
  environment.TOOLS["python"] = Counted


def configured(**overrides):
  config = base_config()
  config.model.update(vocab_size=2 + len(ALPHABET), width=8, num_layers=1, num_heads=1,
                      num_kv_heads=1, head_dim=8, mlp_width=8)
  config.task.update(name="tool_arithmetic", heldout_problems=8)
  config.task.tool_arithmetic.digits = 2
  config.rollout.update(prompts=8, group_size=4, max_prompt_tokens=5, max_new_tokens=16, window=16,
                        slots=8, chunk=4, max_turns=2, max_tool_tokens=8, tool_workers=WORKERS)
  config.update_from_flattened_dict(overrides)
  return setup.resolve(from_dict(config))


def descendants() -> set[int]:
  return set(command.descendants(os.getpid()))


def test_one_sandbox_serves_both_samplers_and_ends_with_the_parts(monkeypatch):
  before, asked = descendants(), []

  def run(*arguments, **options):
    asked.append(options)
    raise SampledError

  monkeypatch.setattr(engine, "run", run)
  cfg = configured(**{"rollout.shared_prefix": True, "mesh.data": 1})
  built = setup.build(cfg, jax.devices()[:1])
  try:
    below = descendants() - before
    assert len(pools) == 1 and len(pools[0].pids()) == WORKERS and set(pools[0].pids()) < below
    for sample in (built.sampler.sample, built.sampler.sample_heldout):
      with pytest.raises(SampledError):
        sample(None, None, None, None)
  finally:
    built.sampler.close()
  assert gone(below)
  built.sampler.close()
  assert [options["environment"].tool for options in asked] == pools * 2
  assert [options["tool_workers"] for options in asked] == [WORKERS] * 2
  sizes = [(options["cfg"].group_size, options["cfg"].shared_prefix) for options in asked]
  assert sizes == [(4, True), (1, False)
                  ], "evaluations may run on several devices, where no prompt can be shared"


def test_a_run_that_fails_leaves_no_process(monkeypatch, tmp_path):
  before, below = descendants(), set()

  def warm_start(*arguments):
    below.update(descendants() - before)
    raise SampledError

  monkeypatch.setattr(trainer, "warm_start", warm_start)
  with pytest.raises(SampledError):
    trainer.run(configured(), tmp_path / "run")
  assert len(pools) == 1 and len(below) >= WORKERS and gone(below)


def test_a_run_without_tools_has_nothing_to_close():
  built = setup.build(configured(**NO_TOOL))
  assert built.sampler.environment is None and pools == []
  built.sampler.close()


def test_a_tool_of_one_s_own_is_given_no_workers(monkeypatch):
  """Only the sandbox's arguments are known."""
  monkeypatch.setattr(Programs, "tool", "calculator")
  built = setup.build(configured())
  assert isinstance(built.sampler.environment.tool, Calculator) and pools == []
  built.sampler.close()


def test_parameters_are_rounded_where_they_go_to_the_sampler():
  """And nowhere else: at the defaults they are the very same arrays."""
  options = NO_TOOL | {"mesh.data": 1}
  built = setup.build(configured(**options, **{"rollout.dtype": "bfloat16"}), jax.devices()[:1])
  params = built.learner.model.init(jax.random.key(0))
  kinds = {keys[-1]: x.dtype for keys, x in flatten_dict(built.sampler.prepare(params)).items()}
  assert kinds["scale"] == jnp.float32 and {kinds[name] for name in ("query", "up")
                                           } == {jnp.dtype("bfloat16")}
  plain = setup.build(configured(**options), jax.devices()[:1])
  assert plain.sampler.prepare(params) is params
