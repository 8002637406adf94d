"""The mismatch meter against a loop over tokens, and its two estimates against an exact KL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.objective.mismatch import PROBABILITY_EDGES, mismatch_metrics
from jaxrl_llm.reporting.summary import summarize
from jaxrl_llm.types import Mean, merge_metrics


def batch(seed=0, rows=6, length=9):
  """(scored, behavior, mask) in f64, with holes, a row without a token and all buckets."""
  rng = np.random.default_rng(seed)
  mask = rng.random((rows, length)) < 0.6
  mask[2] = False
  behavior = np.log(rng.choice([0.003, 0.01, 0.05, 0.3, 0.7, 0.95, 1.0], (rows, length)))
  scored = behavior + 0.2 * rng.standard_normal((rows, length))
  for x in (behavior, scored):
    x[~mask] = rng.choice([np.nan, np.inf, -5.0], (~mask).sum())
  return scored, behavior, mask


def by_hand(scored, behavior, mask) -> dict[str, float]:
  """The numbers as written, one token at a time; what no token has is absent."""
  by_name, sums = {}, []
  for s, b, m in zip(scored, behavior, mask, strict=True):
    if any(m):
      sums.append(abs(sum(x - y for x, y, z in zip(s, b, m, strict=True) if z)))
    for x, y in ((x, y) for x, y, z in zip(s, b, m, strict=True) if z):
      d, bucket = x - y, sum(np.exp(y) >= edge * (1 - 1e-12) for edge in PROBABILITY_EDGES)
      values = {"absolute": abs(d), "k1": -d, "k3": np.exp(d) - 1 - d,
                "outside": not 0.9 <= np.exp(d) <= 1.1, "range/min": d, "range/max": d}
      for name, value in values.items():
        by_name.setdefault(name, []).append(value)
        if "range" not in name:
          by_name.setdefault(f"{name}/by_probability/bucket_{bucket}", []).append(value)
  reduce = {"range/min": min, "range/max": max}
  numbers = {name: float(reduce.get(name, np.mean)(values)) for name, values in by_name.items()}
  return {f"mismatch/{name}": x for name, x in (numbers | {"row": float(np.mean(sums))}).items()}


def check(meter):
  with jax.enable_x64():
    for seed in range(3):
      metrics = jax.device_get(meter(*map(jnp.asarray, batch(seed))))
      assert metrics["mismatch/k3"].total.dtype == np.float64
      numbers, expected = summarize(metrics), by_hand(*batch(seed))
      assert numbers.keys() == expected.keys()
      for name, value in expected.items():
        assert numbers[name] == pytest.approx(value, rel=1e-12, abs=1e-14), name


def over_all_positions(scored, behavior, mask):
  fill = lambda x: jnp.where(mask, x, 0)
  return mismatch_metrics(fill(scored), fill(behavior), jnp.ones_like(mask))


def sign_flipped(scored, behavior, mask):
  means = mismatch_metrics(scored, behavior, mask)
  return means | {"mismatch/k1": means["mismatch/k1"].replace(total=-means["mismatch/k1"].total)}


def buckets_of_the_scorer(scored, behavior, mask):
  other, means = mismatch_metrics(behavior, scored, mask), mismatch_metrics(scored, behavior, mask)
  return means | {"mismatch/absolute/by_probability": other["mismatch/absolute/by_probability"]}


def two_sided_k3(scored, behavior, mask):
  return mismatch_metrics(scored, behavior, mask) | {
      "mismatch/k3": mismatch_metrics(behavior, scored, mask)["mismatch/k3"]}


def test_meter_equals_the_loop():
  check(mismatch_metrics)
  for wrong in (over_all_positions, sign_flipped, buckets_of_the_scorer, two_sided_k3):
    with pytest.raises(AssertionError):
      check(wrong)


def test_an_empty_bucket_is_absent_not_zero():
  behavior = jnp.log(jnp.array([[0.2, 0.95]]))
  buckets = lambda metrics: {name[-1] for name in summarize(jax.device_get(metrics))
                             if "k1/by" in name}
  means = mismatch_metrics(behavior, behavior, jnp.ones((1, 2), bool))
  assert buckets(means) == {"2", "4"}
  clamped = {name: x.replace(count=jnp.maximum(x.count, 1)) for name, x in means.items()
             if isinstance(x, Mean)}
  assert buckets(clamped) == {"0", "1", "2", "3", "4"}  # what a guarded division would do
  nothing = mismatch_metrics(behavior, behavior, jnp.zeros((1, 2), bool))
  assert summarize(jax.device_get(nothing)) == {}


def test_k1_and_k3_are_the_divergence_in_expectation():
  """32 tokens with exactly the shares of the sampler's p: both means are then KL(p || q)."""
  counts = np.array([1, 2, 4, 9, 16])
  p, q = counts / counts.sum(), np.array([0.1, 0.02, 0.2, 0.28, 0.4])
  token = np.repeat(np.arange(5), counts)[None]
  kl = float(np.sum(p * np.log(p / q)))
  with jax.enable_x64():
    numbers = summarize(jax.device_get(mismatch_metrics(
        jnp.asarray(np.log(q)[token]), jnp.asarray(np.log(p)[token]), jnp.ones(token.shape, bool))))
  assert numbers["mismatch/k1"] == pytest.approx(kl, rel=1e-12) and kl > 0.05
  assert numbers["mismatch/k3"] == pytest.approx(kl, rel=1e-12)
  backwards = float(np.sum(q * np.log(q / p)))
  assert numbers["mismatch/k1"] != pytest.approx(backwards, rel=0.05)


@pytest.mark.slow
def test_halves_merge_to_the_whole():
  scored, behavior, mask = (jnp.asarray(x) for x in batch())
  full = mismatch_metrics(scored, behavior, mask)
  halves = merge_metrics(
      [mismatch_metrics(scored[i::2], behavior[i::2], mask[i::2]) for i in range(2)])
  for name, value in summarize(jax.device_get(full)).items():
    assert summarize(jax.device_get(halves))[name] == pytest.approx(value, rel=1e-5), name


def test_no_gradient_passes():
  scored, behavior, mask = (jnp.asarray(x) for x in batch())
  gradient = jax.grad(lambda x: mismatch_metrics(x, behavior, mask)["mismatch/k3"].total)(scored)
  assert not np.any(gradient)
