"""Runs of the engine that end early and are gone on with sample what one whole run samples."""

import jax
import numpy as np
import pytest
import test_turns
from test_turns import GROUP, KEY, LIMITS, MODEL, NEW, PARAMS, SAMPLING, Scripted

from jaxrl_llm.rollouts import engine
from jaxrl_llm.rollouts.engine import EngineConfig
from jaxrl_llm.rollouts.in_flight import InFlight, not_begun

LAYOUT = {"slots": 8, "chunk": 4, "compact": 0, "window": 128}
GROUPS = 3  # that end a run


def in_pieces(environment, key_of=lambda number: KEY, **options):
  """(rows of all runs in the order of their ids, number of runs, tokens that they fed again).

  Which groups end a run depends on when an environment answers; any one run may feed none again.
  """
  cfg = EngineConfig(**{"group_size": GROUP, "max_new_tokens": NEW, "stop_ids": (test_turns.EOS,),
                        "pad_id": 0, **LAYOUT, **options})
  left, out, again = test_turns.prompts(), [], 0
  begun = not_begun(left.row_id[:4 * GROUP], NEW)
  turns = {} if environment is None else LIMITS
  while len(left.row_id):
    groups = min(GROUPS, len(left.row_id) // GROUP)
    rollout, begun, stats = engine.run_on(
        PARAMS, left, key_of(len(out)), SAMPLING, InFlight(begun, 10 + len(out), groups),
        model=MODEL, cfg=cfg, environment=environment, **turns)
    out.append(jax.device_get(rollout))
    again += stats.replayed_steps
    assert len(out[-1].row_id) == groups * GROUP
    left = jax.tree.map(lambda x, kept=np.isin(left.row_id, begun.row_id): x[kept], left)
  rows = jax.tree.map(lambda *xs: np.concatenate(xs), *out)
  order = np.argsort(rows.row_id)
  return jax.tree.map(lambda x: x[order], rows), len(out), again


@pytest.fixture(scope="module")
def expected():
  """One whole run, with turns."""
  return test_turns.run(**LAYOUT)[0]


@pytest.mark.parametrize("shared_prefix", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_runs_that_go_on_equal_one_run(expected, shared_prefix):
  rows, runs, again = in_pieces(Scripted(), shared_prefix=shared_prefix)
  for name in ("tokens", "mask", "length", "turn_id", "void", "stop_reason", "row_id", "group_id"):
    np.testing.assert_array_equal(getattr(rows, name), getattr(expected, name), err_msg=name)
  np.testing.assert_allclose(rows.behavior_log_probs, expected.behavior_log_probs, atol=5e-5)
  assert runs > 2 and again > 0
  several = 0
  for steps, mask in zip(rows.policy_step, rows.mask, strict=True):
    assert (steps[~mask] == 0).all() and (np.diff(steps[mask]) >= 0).all()
    assert (steps[mask] >= 10).all()
    several += len(np.unique(steps[mask])) > 1
  assert several, "no completion was interrupted"


def test_noise_of_the_run_instead_of_the_completion_is_noticed(expected):
  rows, *_ = in_pieces(Scripted(), lambda number: jax.random.fold_in(KEY, number))
  assert (rows.tokens != expected.tokens).any()
