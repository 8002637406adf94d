"""Drawn tokens, and cosines of advantages with planted values."""

import numpy as np
import pytest

from experiments.smollm2 import credit


def group(rows=2 * credit.GROUP, length=5, seed=0):
  """(live, rewards, log_p): the first group has right and wrong rows, the second none right."""
  rng = np.random.default_rng(seed)
  rewards = np.r_[rng.permutation([0.0, 1.0] * (credit.GROUP // 2)), np.zeros(credit.GROUP)]
  log_p = np.log(np.tile([0.99, 0.5, 0.95, 0.2, 0.3], (rows, 1)))
  return np.arange(length) < np.full((rows, 1), 4), rewards.astype(np.float32), log_p


def test_uncertain_tokens_of_mixed_groups_are_drawn():
  chosen = credit.drawn(np.random.default_rng(1), *group(), count=10)
  assert len({row for row, _ in chosen}) == 10
  assert all(row < credit.GROUP and t in (1, 3) for row, t in chosen)
  assert {t for _, t in chosen} == {1, 3}


def test_advantages_have_a_row_for_each_and_tempo_follows_the_tree():
  live, rewards, log_p = group()
  tokens = np.tile([[5, 6, 7, 8, 2]], (len(live), 1))
  tokens[:credit.GROUP, 1] = np.where(rewards[:credit.GROUP] > 0, 6, 9)  # decides the reward
  of = credit.advantages(tokens, live, rewards, log_p, np.exp(2 * log_p) + 0.01)
  right = int(np.argmax(rewards))
  assert set(of) == set(credit.METHODS) and of["otb"].shape == live.shape
  assert of["tempo"][right, 1] > 1.5 * of["tempo"][right, 3] == pytest.approx(1.5 * of["grpo"][
      right, 3])


def planted(sign: float, rollouts=64, seed=0) -> list[dict]:
  """Tokens of which TEMPO knows the credit up to `sign`, and the others nothing."""
  rng = np.random.default_rng(seed)
  out = []
  for _ in range(40):
    before, after = rng.random(2)
    out.append({"group": 0.5, "tempo": sign * (after - before), "grpo": rng.normal(),
                "otb": rng.normal(),
                **{name: (rng.random(rollouts) < p).astype(float).tolist()
                   for name, p in (("before", before), ("with", after))}})
  return out


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cosines_are_of_the_credit_with_its_sign(sign):
  """Wrong: a credit of the value before minus the value with it."""
  tokens = planted(sign)
  halves = credit.credits_of(tokens)["of the token"]
  tempo = np.array([t["tempo"] for t in tokens])
  assert sign * credit.cosine(tempo, halves.mean(0)) > 0.95
  assert credit.cosine(*halves) > 0.9
  assert abs(credit.cosine(np.array([t["grpo"] for t in tokens]), halves.mean(0))) < 0.5
  assert credit.cosine(np.zeros(40), tempo) == 0.0


def test_the_page_names_each_method():
  text = credit.text({"rollouts": 64, "tokens": planted(1.0)})
  assert all(f"| {name} |" in " ".join(text.split()) for name in (*credit.METHODS, "halves"))
