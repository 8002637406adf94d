"""experiments/papers/judges: tournaments without conflicts against all n! orders; tables."""

import asyncio
import copy
import itertools
import json
import shutil
from pathlib import Path

import experiment_files
import numpy as np
import pytest

from experiments.papers.judges import tournaments
from jaxrl_llm.config import RewardConfig, load_plugins
from jaxrl_llm.tasks.rewards import RewardedTask
from jaxrl_llm.types import Problem

FOLDER = Path(__file__).parents[4] / "experiments" / "papers" / "judges"
CYCLE = [(0, 1), (1, 2), (2, 0), (0, 3), (1, 3), (2, 3)]  # wins of 4 items, 0 > 1 > 2 > 0
PROBLEM = Problem("2+2=", "4")


def loaded(name):
  return experiment_files.load(FOLDER / f"{name}.py")


def tournament(wins, n=4):
  preferences = np.zeros((n, n))
  for i, j in wins:
    preferences[i, j], preferences[j, i] = 1, -1
  return preferences


def drawn(rng, n, values=(-1, 0, 1)):
  upper = np.triu(rng.choice(values, (n, n)), 1).astype(float)
  return upper - upper.T


def by_listing(preferences, directions=None, first=False):
  """`kept_wins` from the list of all n! orders; the loop that the public code runs."""
  n, lowest, candidates = len(preferences), np.inf, []
  wins = np.maximum(preferences, 0)
  ties = np.zeros((n, n)) if directions is None else (preferences == 0) & (directions > 0)
  for order in itertools.permutations(range(n)):
    place = np.argsort(order)
    ahead = place[:, None] < place
    cost = ((wins + 0.1 * ties) * ~ahead).sum()
    if cost < lowest - 1e-9:
      lowest, candidates = cost, []
    if cost < lowest + 1e-9:
      candidates.append(wins * ahead)
  return candidates[0] if first else np.mean(candidates, axis=0)


def test_the_golden_tournament():
  preferences = tournament(CYCLE)
  kept = tournaments.kept_wins(preferences, "first")
  assert [(i, j) for i, j in CYCLE if not kept[i, j]] == [(2, 0)]
  np.testing.assert_array_equal(kept.sum(1) - kept.sum(0), [2, 1, 0, -3])
  np.testing.assert_allclose(tournaments.dgr_rewards(preferences, "first"), [2 / 3, 1 / 3, 0, -1])
  symmetric = tournaments.dgr_rewards(preferences)
  np.testing.assert_allclose(symmetric, [1 / 3, 1 / 3, 1 / 3, -1])


@pytest.mark.parametrize("order", ["symmetric", "first"])
@pytest.mark.parametrize("ties", ["random", "none"])
def test_equals_the_list_of_all_orders(order, ties):
  rng = np.random.default_rng(0)
  differs = 0
  for n in (1, 2, 3, 4, 5, 6, 6, 6):
    preferences = drawn(rng, n, (-1, 0, 1)) * np.round(rng.random(), 2)
    directions = drawn(rng, n, (-1, 1)) if ties == "random" else None
    wins = tournaments.kept_wins(preferences, order, directions)
    np.testing.assert_allclose(wins, by_listing(preferences, directions, order == "first"))
    differs += not np.allclose(wins, np.maximum(preferences, 0))
  assert differs, "nothing was ever deleted"


def cleans(kept_wins, has_conflict) -> bool:
  """Whether what is kept of random tournaments is acyclic, and everything where no cycle was."""
  rng, cyclic = np.random.default_rng(2), 0
  for _ in range(60):
    preferences = drawn(rng, 5)
    kept = kept_wins(preferences, "first")
    cyclic += has_conflict(preferences)
    if has_conflict(kept - kept.T):
      return False
    for order in ("first", "symmetric"):
      same = np.array_equal(kept_wins(preferences, order), np.maximum(preferences, 0))
      if same == has_conflict(preferences):
        return False
  return 5 < cyclic < 55


def test_cleaning_removes_cycles_and_nothing_else():
  assert cleans(tournaments.kept_wins, tournaments.has_conflict)
  keeps_all = lambda preferences, order: np.maximum(preferences, 0)
  keeps_none = lambda preferences, order: np.zeros_like(preferences)
  one_order = lambda preferences, order: np.triu(np.maximum(preferences, 0))
  for wrong in (keeps_all, keeps_none, one_order):
    assert not cleans(wrong, tournaments.has_conflict)


def test_the_share_of_prompts_with_a_cycle():
  cycle = np.array([[0, 1, -1], [-1, 0, 1], [1, -1, 0]])
  line = np.array([[0, 1, 1], [-1, 0, 1], [-1, -1, 0]])
  tie = np.array([[0, 1, 0], [-1, 0, 1], [0, -1, 0]])  # a cycle only if a tie were a win
  assert tournaments.conflict_rate([cycle, line, tie, np.zeros((3, 3))]) == 0.25
  assert tournaments.conflict_rate([cycle, cycle]) == 1.0


TEXTS = ["4", "5", "=4", "4", "xx"]


def scored(name, texts, **numbers):
  load_plugins((str(FOLDER / "reward.py"),))
  return RewardedTask(None, RewardConfig(name, **numbers)).group_rewards([PROBLEM], texts)


def test_the_rule_s_tournament():
  rows = scored("rule_tournament", TEXTS, ties="none", tournament_weight=0.5)
  # "4" beats "=4", which beats "5" and "xx"; two tie, and so do the equal texts.
  net = [3, -3, 1 - 2 + 1, 3, -3]
  np.testing.assert_allclose([row.value for row in rows], np.array(net) / 3 * 0.5)
  assert {dict(row.components)["conflict"] for row in rows} == {0.0}
  alone, = scored("rule_tournament", ["4"])
  assert alone.value == 0.0 and dict(alone.components)["conflict"] == 0.0


def test_rewards_repeat_and_do_not_depend_on_the_order_of_the_group():
  texts = ["4", "44", "x4", "4yy", "=4+", "7", "8", "9"]
  numbers = {"noise": 0.4, "ties": "random"}
  values = [row.value for row in scored("rule_tournament", texts, **numbers)]
  back = [row.value for row in scored("rule_tournament", texts[::-1], **numbers)]
  np.testing.assert_allclose(values, back[::-1])
  rows = scored("rule_tournament", texts, **numbers)
  assert {dict(row.components)["conflict"] for row in rows} == {1.0}
  kept = [row.value for row in scored("rule_tournament", texts, method="copeland", **numbers)]
  assert not np.allclose(values, kept), "nothing was deleted"


def test_the_judge_is_asked_once_per_pair_of_distinct_texts(monkeypatch):
  reward, asked = loaded("reward"), []

  async def answer(url, question, timeout):
    asked.append((question["first"], question["second"]))
    return {"winner": "tie" if "xx" in asked[-1] else "first"}

  async def garbage(url, question, timeout):
    return {"winner": "both"}

  monkeypatch.setattr(reward.reward_calls, "asked", answer)
  cfg = reward.Asked(ties="none")
  object.__setattr__(cfg, "timeout", 1.0)
  rows = asyncio.run(reward.tournament(PROBLEM, TEXTS, cfg))
  assert sorted(asked) == list(itertools.combinations(sorted(set(TEXTS)), 2))
  values = [row["tournament"][0] for row in rows]
  # "4" < "5" < "=4" as texts, so "4" wins twice, each time against both.
  np.testing.assert_allclose(values, np.array([2, -1, -3, 2, 0]) / 3)
  monkeypatch.setattr(reward.reward_calls, "asked", garbage)
  with pytest.raises(ValueError, match="'winner': 'both'"):
    asyncio.run(reward.tournament(PROBLEM, TEXTS, cfg))


def test_the_page_shows_the_recorded_results(tmp_path):
  toy, results = loaded("toy"), json.loads((FOLDER / "results.json").read_text())
  page = Path(shutil.copy(FOLDER / "README.md", tmp_path))
  toy.render(results, page)
  assert page.read_text() == (FOLDER / "README.md").read_text()
  for key in ("conflict", "gain", "copeland"):
    changed = copy.deepcopy(results)
    changed["tournaments"]["1 in 5 reversed"][key] += 0.01
    toy.render(changed, page)
    assert page.read_text() != (FOLDER / "README.md").read_text()
  changed["run"]["iteration"] = [8, 9]
  toy.render(changed, page)
  assert "| 9 " in page.read_text()
