"""The atlas: coefficients against closed forms, wrong estimators that they reject, and the page."""

import io
import math
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from suites import quick_for

from experiments.tables_lib.atlas import atlas, atlas_panels, atlas_tables, coefficients
from experiments.tables_lib.page_parts import markers
from jaxrl_llm.config import ConfigError, EstimatorConfig, load_plugins
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.estimators import common

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "experiments" / "atlas"
ALONE = [name for name in estimators.names() if not estimators.spec(name).of_groups]
POINTS = ((0.1, -0.004), (0.004, 0.3), (-0.6, 0.05), (-0.01, -0.4), (1.2, 1.8))  # (L_t, l_t)


def window(weight, log_weight, sign, low, high, dual=math.inf):
  """The weight, or 0 beyond the bound on the advantage's side, or for A < 0 above `dual`."""
  dropped = log_weight > high if sign > 0 else log_weight < low or log_weight > dual
  return 0.0 if dropped else weight


def ctpo(t, total, log_ratio, sign):
  root = math.sqrt(t)
  return window(math.exp(total), total, sign, -0.025 * root, 0.05 * root, 0.05 * root)


def ppo(t, total, log_ratio, sign):
  return window(math.exp(log_ratio), log_ratio, sign, math.log(0.8), math.log(1.2))


def gspo(t, total, log_ratio, sign):
  mean = total / t
  return window(math.exp(mean), mean, sign, math.log(1 - 3e-4), math.log(1 + 4e-4))


def minpro(t, total, log_ratio, sign):
  return math.exp(log_ratio + ((total - log_ratio) / (t - 1) if t > 1 else 0.0))


# (t, L_t, l_t, sign of A) to the coefficient, by hand.
CLOSED = {
    "reinforce": lambda t, total, log_ratio, sign: 1.0,
    "ppo": ppo,
    "gspo": gspo,
    "seq_is": lambda t, total, log_ratio, sign: math.exp(total),
    "cispo": lambda t, total, log_ratio, sign: min(math.exp(log_ratio), 5.0),
    "ctpo": ctpo,
    "minpro": minpro,
}


def largest_difference(name: str, closed) -> float:
  """Returns the largest difference of the computed coefficients to a closed form."""
  parts, expected = [], []
  for t in (1, 10):
    for sign in (1.0, -1.0):
      for total, log_ratio in POINTS:
        total = log_ratio if t == 1 else total
        parts.append(coefficients.even_rows(t, [total], [log_ratio], sign=sign))
        expected.append(closed(t, total, log_ratio, sign))
  values = coefficients.row_coefficients(EstimatorConfig(name), coefficients.stack(parts))
  return float(np.max(np.abs(values - expected)))


@pytest.mark.parametrize("name", CLOSED)
def test_coefficients_are_the_closed_forms(name):
  assert largest_difference(name, CLOSED[name]) < 1e-9


@pytest.mark.parametrize("wrong", [
    lambda weight, *given: -common.score_function_surrogate(weight, *given),
    lambda weight, log_probs, advantages, _: (
        -lax.stop_gradient(weight) * advantages + 0 * log_probs),
    lambda weight, log_probs, advantages, _: -weight * advantages,
], ids=["sign", "detached ratio", "differentiated sum"])
def test_a_wrong_estimator_has_another_coefficient(wrong):
  """The third is exp(L_t) whose running sum is differentiated: earlier tokens are credited again.
  Only a token that others follow shows it.
  """
  @estimators.register("wrong", replace=True)
  def estimator(log_probs, anchor_log_probs, advantages, mask, cfg):
    log_ratio = common.masked_log_ratio(log_probs, anchor_log_probs, mask)
    none = jnp.zeros_like(mask)
    loss = wrong(jnp.exp(jnp.cumsum(log_ratio, -1)), log_probs, advantages, mask)
    return common.output(loss, common.clip_counts(mask, high=none, low=none, dropped=none))

  open_ctpo = EstimatorConfig("ctpo", log_low="none", log_high="none", log_dual="none")
  grid = ([0.3, -0.2], [0.1])
  more = {"positions": (5,), "later": (0.2, 0.1)}
  right = coefficients.coefficients(open_ctpo, *grid, **more)
  values = coefficients.coefficients("wrong", *grid, **more)
  np.testing.assert_allclose(right[0, 0, :, 0], np.exp([0.3, -0.2]), rtol=1e-12)
  assert np.min(np.abs(values - right)) > 0.1


def test_every_registered_estimator_has_a_place():
  placed = [label for labels in atlas.families(atlas.configs()).values() for label in labels]
  assert sorted(placed) == ALONE
  families = estimators.families()
  assert families.pop(estimators.OTHERS) == [] and all(families.values())
  assert {"reinforce", "dro"} <= set(families["no ratio"])
  assert {"ppo", "cispo", "sapo"} <= set(families["token ratio"])


def test_a_plugin_is_drawn_beside_the_others():
  load_plugins((str(ROOT / "experiments/extend/estimator.py"),))
  methods = atlas.configs()
  assert atlas.families(methods)[estimators.OTHERS] == ["tempered"]
  stream = io.BytesIO()
  figure = atlas.draw(["reinforce", "tempered"], stream, positions=(1, 3), cells=3)
  texts = {text.get_text() for text in figure.texts}
  assert {"reinforce", "tempered", "power=1", estimators.OTHERS} <= texts
  panels = [axes.images[0].get_array() for axes in figure.axes if axes.images]
  assert len(panels) == 2 * 2 * 2
  np.testing.assert_array_equal(panels[1], np.ones((3, 3)))
  ratio = np.exp(atlas_panels.axis(3))  # upwards is the token's ratio
  np.testing.assert_allclose(panels[5][:, 0], ratio)
  assert stream.getvalue().startswith(b"\x89PNG") and figure._repr_png_().startswith(b"\x89PNG")


def test_an_estimator_that_is_not_finite_is_named():
  @estimators.register("unbounded", replace=True)
  def unbounded(log_probs, anchor_log_probs, advantages, mask, cfg):
    loss = jnp.where(mask, -advantages * jnp.sqrt(log_probs - anchor_log_probs), 0.0)
    return common.output(loss, {})

  with pytest.raises(ConfigError, match=r"'unbounded' \(.*gradient is nan at token 1 of a row with "
                                        r"log-ratios -0.5"):
    coefficients.coefficients("unbounded", [0.0], [-0.5], positions=(1,))
  with pytest.raises(ConfigError, match="'ppoo': registered are"):
    atlas.draw(["ppoo"])
  with pytest.raises(ConfigError, match="a list of names was expected"):
    atlas.draw("ppo")
  with pytest.raises(ConfigError, match="cells = 4"):
    atlas.draw(["ppo"], cells=4)


def committed() -> dict[str, list[list[str]]]:
  """Returns label to its cells in each of the page's tables."""
  begin, end = markers("run.py")
  text = (FOLDER / "README.md").read_text().split(begin)[1].split(end)[0]
  rows = [[cell.strip() for cell in line.strip("|").split("|")]
          for line in text.splitlines() if re.match(r"\| *[a-z]", line)]
  return {label: [row[1:] for row in rows if row[0] == label] for label, *_ in rows}


def written(label: str) -> list[list[str]]:
  """Returns the same cells, computed now."""
  facts = {label: atlas_tables.measure(EstimatorConfig(label))}
  texts = [atlas_tables.reads_table(facts), *(atlas_tables.limit_table(facts, move)
                                              for move in atlas_tables.MOVES)]
  return [[cell.strip() for cell in text.strip().splitlines()[-1].strip("|").split("|")][1:]
          for text in texts]


def test_the_page_has_every_estimator():
  assert sorted(committed()) == ALONE
  assert (FOLDER / "atlas.png").stat().st_size < 600_000


@pytest.mark.parametrize("name", quick_for({"ppo", "gspo"}, ALONE))
def test_the_page_s_numbers_are_those_of_the_estimators(name):
  assert written(name) == committed()[name]
