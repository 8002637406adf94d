"""A run with an engine for each device is the run on one device, up to rounding."""

import jax
import numpy as np
import pytest
from test_overlap import built, from_the_start
from test_sequence_run import without_sizes

from jaxrl_llm.config import ConfigError
from jaxrl_llm.rollouts import engines

ENGINE = {"updates.overlap": False, "rollout.slots": 8, "rollout.shared_prefix": True}
EACH = {"rollout.engine_per_device": True}


@pytest.mark.parametrize("overrides", [
    pytest.param({}, id="all", marks=pytest.mark.nightly),
    pytest.param({"mesh.rollout": 2, "updates.overlap": True}, id="apart",
                 marks=pytest.mark.nightly)])
def test_an_engine_for_each_device_changes_nothing(overrides, monkeypatch):
  real, meshes = engines.run, []

  def counted(*arguments, **options):
    meshes.append(options["mesh"].size)
    return real(*arguments, **options)

  monkeypatch.setattr(engines, "run", counted)
  each, whole = built(4, **ENGINE | EACH | overrides), built(1, **ENGINE)
  for (tree, _, rows, values), (tree_, _, rows_, values_) in zip(
      from_the_start(each), from_the_start(whole), strict=True):
    assert [row["tokens"].tolist() for row in rows] == [row["tokens"].tolist() for row in rows_]
    assert without_sizes(values) == pytest.approx(without_sizes(values_), rel=1e-3, abs=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
                 tree["train"].params, tree_["train"].params)
  assert set(meshes) == {4 - 2 * bool(overrides)}


def test_a_shared_prefix_needs_an_engine_of_one_device():
  with pytest.raises(ConfigError, match=r"4 devices.*Fix: rollout.engine_per_device=True, or"):
    built(4, **ENGINE)
  with pytest.raises(ConfigError, match=r"2 devices that sample.*Fix: rollout.shared_prefix=False"):
    built(4, **ENGINE | EACH | {"mesh.tensor": 2})
