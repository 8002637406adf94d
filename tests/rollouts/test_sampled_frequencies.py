"""200,000 samples have the stated probabilities under every rule, by chi-square."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_of

from jaxrl_llm.rollouts.next_token import row_keys, sample_token
from jaxrl_llm.types import Sampling

SAMPLES, V = 200_000, 12
# Upper 0.1 % points of chi-square with 1 to 11 degrees of freedom.
QUANTILE = (10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32, 26.12, 27.88, 29.59, 31.26)
CASES = {
    "temperature": (0.7, {}),
    "hotter": (2.0, {}),
    "top_k": (1.0, {"top_k": 5}),
    "top_p": (1.0, {"top_p": 0.8}),
    "min_p": (1.0, {"min_p": 0.15}),
    "all": (1.4, {"top_k": 9, "top_p": 0.92, "min_p": 0.12}),
}
BANNED = 4  # a likely token


def state():
  """(hidden state [D], head [D, V]); the first and the banned token are likely."""
  logits = np.array([1.2, -0.4, 0.3, -1.6, 1.0, -0.9, 0.6, -2.2, 0.1, -0.1, 0.8, -3.0], np.float32)
  return np.ones(1, np.float32), logits[None]


def stated(temperature, rules, banned=False) -> np.ndarray:
  """[V] float64 probabilities by sorting, token by token."""
  z = state()[1][0].astype(np.float64) / temperature
  allowed = [t for t in range(V) if not (banned and t == BANNED)]
  p = np.exp(z - z.max())
  kept = sorted(allowed, key=p.__getitem__, reverse=True)[:rules.get("top_k", 0) or V]
  total, mass, nucleus = sum(p[t] for t in kept), 0.0, []
  for token in kept:
    if mass < rules.get("top_p", 1.0) * total:
      nucleus.append(token)
    mass += p[token]
  kept = [t for t in nucleus if p[t] >= rules.get("min_p", 0.0) * p[nucleus[0]]]
  out = np.zeros(V)
  out[kept] = p[kept] / sum(p[kept])
  return out


@functools.cache
def program(banned):
  """(key, sampling) -> (tokens, log-probs), SAMPLES of them at one state."""
  hidden, head = state()
  forbidden = jnp.broadcast_to(jnp.arange(V) == BANNED, (SAMPLES, V)) if banned else None
  rows = jnp.arange(SAMPLES, dtype=jnp.int32)

  @jax.jit
  def run(key, sampling):
    return sample_token(jnp.broadcast_to(hidden, (SAMPLES, 1)), jnp.asarray(head),
                        (row_keys(key, rows), jnp.zeros_like(rows)), sampling, forbidden)

  return run


@functools.cache
def counted(name, banned=False):
  """([V] counts, [V] reported probability of each token, NaN for tokens that never came)."""
  temperature, rules = CASES[name]
  tokens, log_probs = jax.device_get(
      program(banned)(jax.random.key(11), Sampling.of(temperature, **rules)))
  reported = np.full(V, np.nan)
  reported[tokens] = np.exp(log_probs.astype(np.float64))
  return np.bincount(tokens, minlength=V), reported


def refuted(counts, p) -> bool:
  """Whether chi-square rejects p at 0.1 %; a sampled token of probability 0 refutes it at once."""
  kept = p > 0
  if np.any(counts[~kept]):
    return True
  expected = counts.sum() * p[kept]
  assert expected.min() > 5, "too few samples for the test"
  return np.sum((counts[kept] - expected) ** 2 / expected) > QUANTILE[kept.sum() - 2]


@pytest.mark.parametrize("name, banned", quick_of({"all"}, {
    name + " with a ban" * banned: (name, banned) for name in CASES for banned in (False, True)}))
def test_frequencies_are_the_stated_ones(name, banned):
  counts, reported = counted(name, banned)
  p = stated(*CASES[name], banned)
  assert not refuted(counts, p)
  np.testing.assert_array_equal(counts > 0, p > 0)
  np.testing.assert_allclose(reported[p > 0], p[p > 0], rtol=1e-5)


def before_renormalising(name, p):
  """Wrong: probabilities of a sampler that forgets to renormalise."""
  return stated(CASES[name][0], {}) * (p > 0)


def top_p_before_top_k(name, p):
  """Wrong: the nucleus of the whole distribution, then its top k."""
  temperature, rules = CASES[name]
  probs = stated(temperature, {})
  order = np.argsort(-probs)
  needed = np.cumsum(probs[order]) - probs[order] < rules["top_p"]
  kept = [t for t in order[needed][:rules["top_k"]] if probs[t] >= rules["min_p"] * probs.max()]
  return np.where(np.isin(np.arange(V), kept), probs, 0) / probs[kept].sum()


WRONG = [(name, before_renormalising) for name, (_, rules) in CASES.items() if rules
        ] + [("all", top_p_before_top_k)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_other_probabilities_are_refuted(name, wrong):
  p = stated(*CASES[name])
  assert refuted(counted(name)[0], wrong(name, p))


@pytest.mark.slow
def test_another_temperature_and_a_forgotten_ban_are_refuted():
  assert refuted(counted("temperature")[0], stated(0.72, {}))
  assert refuted(counted("top_k", True)[0], stated(*CASES["top_k"]))
  # Wrong: the ban after the rules, which then keep one token less.
  late = stated(*CASES["top_k"]) * (np.arange(V) != BANNED)
  assert refuted(counted("top_k", True)[0], late / late.sum())
