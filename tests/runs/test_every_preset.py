"""Every preset trains: 20 steps of the smallest run are finite, and the parameters move."""

import math

import jax
import numpy as np
import pytest
import tiny

from jaxrl_llm import parallel, presets
from jaxrl_llm.config import from_dict
from jaxrl_llm.models.trainable import split
from jaxrl_llm.objective import advantages
from jaxrl_llm.registry import ADVANTAGES
from jaxrl_llm.reporting import summary
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.outputs import merged_metrics
from jaxrl_llm.runs.run_state import first_state
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.loop import make_loop
from jaxrl_llm.wiring.warm_start import Start

ITERATIONS, BATCHES = 5, 4


def smallest(preset: str):
  config = tiny.get_config(preset)
  config.model.update(num_layers=1, width=8, mlp_width=8)
  config.rollout.update(prompts=8, group_size=4)
  config.updates.update(optimizer_batches=BATCHES, micro_batches=2)
  if config.dynamic_sampling.enabled:
    config.dynamic_sampling.max_draws = 60  # an untrained policy is seldom right
  config.optimizer.learning_rate = 3e-2
  return config


def components(preset: str) -> set[tuple[str, str]]:
  """What a preset sets beside an estimator or an advantage, which are tested without a run."""
  of_rewards = {name for name in advantages.names() if not ADVANTAGES[name].needs}
  return {(key, str(value)) for key, value in presets.PRESETS[preset].items()
          if key.endswith((".name", ".enabled", ".level", ".reject", ".anchor", ".place"))
          and not key.startswith("estimator.")
          and not (key == "advantage.name" and value in of_rewards)}


def first_of_each() -> set[str]:
  """The presets that are the first with one of their components."""
  first, met = set(), set()
  for preset in presets.PRESETS:
    if components(preset) - met:
      first.add(preset)
      met |= components(preset)
  return first


FIRST = first_of_each()


@pytest.mark.parametrize("preset", [
    pytest.param(preset, marks=pytest.mark.slow if preset in FIRST
                 else pytest.mark.nightly) for preset in presets.PRESETS])
def test_twenty_steps(preset):
  built = setup.build(setup.resolve(from_dict(smallest(preset))), jax.devices()[:1])
  params = built.learner.model.init(jax.random.key(0))
  start = Start(*split(params, built.cfg.parameters, jax.random.key(1)))
  run = first_state(built.learner, start)
  norms = []
  for iteration in range(1, ITERATIONS + 1):
    run, (steps, extra, _), values, rows = iterate(make_loop(*built), run, params, iteration)
    metrics = summary.summarize(parallel.gather_host({**merged_metrics(steps), **extra}))
    bad = {name: x for name, x in {**metrics, **values}.items() if not math.isfinite(x)}
    assert not bad, f"iteration {iteration}"
    norms += [float(step["optimizer/grad_norm"].total) for step in steps]
    assert len(rows) == built.cfg.rollout.rows and values["step"] == int(run.state.step)
  assert int(run.state.step) == ITERATIONS * BATCHES
  assert max(norms) > 0
  moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), built.learner.merged(run.state),
                       params)
  assert max(jax.tree.leaves(moved)) > 1e-4
