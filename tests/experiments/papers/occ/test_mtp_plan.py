"""The plan of a run with a head that predicts two tokens ahead counts that head."""

import jax
import planned_config
import pytest

from experiments.planning import abstract, flops, programs

pytestmark = pytest.mark.slow


def operations(name: str) -> dict[str, tuple[float, float]]:
  """(counted products, the model's own operations) of a run's scoring pass and update."""
  planned = abstract.plan(planned_config.ready(term={"name": name}), jax.devices()[:4])
  return {one.name: (flops.products(flops.count(one.trace().jaxpr, planned.head).total(one.trips)),
                     one.model_flops)
          for one in programs.iteration_programs(planned, ("score", "step"))}


def test_the_head_s_operations_are_in_the_plan():
  plain, detached, occ = (operations(name) for name in ("none", "mtp_detach", "occ"))
  for name, (counted, needed) in occ.items():
    assert needed < counted < 2.5 * needed, name
    assert needed > 1.2 * plain[name][1]
  assert detached["score"] == plain["score"], "no loss reads the head's anchor"
  # The coefficient costs a further forward pass, a third of what a gradient costs.
  assert occ["step"][0] == pytest.approx(detached["step"][0] * 4 / 3, rel=0.15)
