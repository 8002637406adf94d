"""ratio/ess: the effective share of completions' ratios, over micro-batches."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_llm.objective.loss import ratio_metrics
from jaxrl_llm.ops import masked
from jaxrl_llm.reporting.summary import summarize
from jaxrl_llm.types import Rollout, merge_metrics

EVEN, UNEVEN = [0.0, 0.0, 0.0], [np.log(9.0), 0.0, 0.0]


def share(*batches: list[float]) -> float:
  """The metric as a run logs it, of log-weights in several micro-batches."""
  metrics = [{"x": masked.effective_share(jnp.array(batch), jnp.ones(len(batch), bool))}
             for batch in batches]
  return summarize(merge_metrics(metrics))["x"]


def mean_of_shares(*batches: list[float]) -> float:
  """A wrong one: it does not see that one micro-batch outweighs another."""
  return float(np.mean([share(batch) for batch in batches]))


def test_by_hand():
  assert share(EVEN) == pytest.approx(1.0)
  assert share(UNEVEN) == pytest.approx(11**2 / (3 * 83))
  assert share([100.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_micro_batches_merge_to_the_whole():
  parts = (EVEN, [5.0, 5.0, 5.0])
  assert share(*parts) == pytest.approx(share([*parts[0], *parts[1]]))
  assert abs(mean_of_shares(*parts) - share(*parts)) > 0.4


def test_ratios_are_those_of_whole_completions_without_the_prompt():
  """Two rows whose ratios cancel within each row; a third row without sampled tokens."""
  mask = jnp.array([[False, True, True], [False, True, True], [False] * 3])
  log_probs = jnp.array([[9.0, 1.0, -1.0], [0.0, -2.0, 2.0], [7.0, 7.0, 7.0]])
  rows = jnp.zeros(3, jnp.int32)
  rollout = Rollout(tokens=jnp.zeros((3, 3), jnp.int32), mask=mask, length=rows + 3,
                    prompt_length=rows + 1, behavior_log_probs=jnp.zeros((3, 3)),
                    turn_id=mask.astype(jnp.int32), truncated=rows > 0, stop_reason=rows,
                    void=rows > 0, policy_step=rows, row_id=rows, group_id=rows)
  metric = ratio_metrics(log_probs, jnp.zeros((3, 3)), rollout)["ratio/ess"]
  assert summarize({"x": metric})["x"] == pytest.approx(1.0) and float(metric.count) == 2
