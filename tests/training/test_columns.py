"""Columns: a plugin's pass reaches what asks for it, in its row, and is made for nobody else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smallest
import tiny_batch

from jaxrl_llm.config import ConfigError, from_dict
from jaxrl_llm.objective import advantages, terms
from jaxrl_llm.ops import masked
from jaxrl_llm.registry import COLUMNS
from jaxrl_llm.training import columns
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.scoring import score_rollout

ROWS, LENGTH = tiny_batch.ROWS, tiny_batch.LENGTH
REWARDS, KEEP = jnp.zeros(ROWS), jnp.ones(ROWS, bool)


def novelty(parts: columns.ColumnParts):
  """The token's id plus an entry of the parameters, times the advantage's number."""
  scale = getattr(parts.numbers, "scale", 1.0)

  def column(params, rollout, sampling, *, packing=None):
    del sampling, packing
    return scale * (rollout.tokens + params["embedding"][0, 0])

  return column


def distance(parts: columns.ColumnParts):
  """Numbers of both policies, from which their order is seen."""
  del parts

  def column(reference, params, rollout, sampling, *, packing=None):
    del sampling, packing
    return jnp.where(rollout.mask, reference["embedding"][0, 0] - 2 * params["embedding"][0, 0], 0)

  return column


@pytest.fixture(autouse=True)
def readers():
  """Columns, and an advantage and terms that read them."""
  columns.register("novelty")(novelty)
  columns.register("distance", reads=(columns.REFERENCE, columns.CURRENT))(distance)
  columns.register_statistic("uncertainty", "entropy")

  @advantages.register("by_novelty", needs={"novelty"}, scale=1.0)
  def by_novelty(inputs, cfg):
    del cfg
    return masked.masked(inputs.columns["novelty"], inputs.mask)

  for name in ("novelty", "distance", "uncertainty", "ref_log_probs", "unheard"):
    @terms.register(f"on_{name}", columns={name}, coef=0.1)
    def on_column(inputs, cfg, name=name):
      del cfg
      return terms.TermOutput(masked.masked(inputs.batch.columns[name], inputs.live), {})


def learner_of(by="grpo", term="none", optimizer_batches=2, **sections):
  config = smallest.config(**{
      "rollout.prompts": 2, "rollout.max_new_tokens": LENGTH - 2, "rollout.window": LENGTH - 2,
      "updates.optimizer_batches": optimizer_batches, "advantage.name": by, "term.name": term})
  for name, values in sections.items():
    config[name].update(values)
  return setup.build_learner(setup.resolve(from_dict(config)), jax.devices()[:1])[2]


def scored(learner, seed=0):
  """(scores of the rollout, parameters, reference) of a learner."""
  params, reference = (learner.model.init(jax.random.key(seed + i)) for i in (0, 1))
  return score_rollout(learner.scoring, {"current": params, "reference": reference},
                       tiny_batch.rollout()), params, reference


def check_reaches(learner, rollout, expected) -> None:
  """Each optimizer batch has the column's rows in its advantages and for its term."""
  scores, _, _ = scored(learner)
  batches, _ = learner.batches(rollout, REWARDS, KEEP, scores)
  assert len(batches) == 2
  for k, batch in enumerate(batches):
    rows = np.arange(4) + 4 * k
    np.testing.assert_allclose(batch.columns["novelty"], expected[rows], rtol=1e-6)
    np.testing.assert_allclose(batch.advantages, expected[rows] * rollout.mask[rows], rtol=1e-6)


def test_a_column_reaches_the_advantage_and_the_term_in_its_own_row():
  learner = learner_of("by_novelty", "on_novelty", advantage={"scale": 0.5})
  rollout, params = tiny_batch.rollout(), scored(learner)[1]
  expected = 0.5 * (np.asarray(rollout.tokens) + float(params["embedding"][0, 0]))
  check_reaches(learner, rollout, expected)
  for wrong in (expected[::-1], 2 * expected, expected + 0.1):
    with pytest.raises(AssertionError):
      check_reaches(learner, rollout, wrong)


def test_a_column_is_made_only_where_something_reads_it():
  assert scored(learner_of("by_novelty"))[0].columns.keys() == {"novelty"}
  (batch, _), _ = learner_of("by_novelty").batches(
      tiny_batch.rollout(), REWARDS, KEEP, scored(learner_of("by_novelty"))[0])
  assert batch.columns is None, "no term reads it, so that it does not travel on"
  plain = learner_of()
  assert not plain.scoring.columns and scored(plain)[0].columns is None
  of_term = learner_of(term="on_novelty")
  assert set(of_term.scoring.columns) == {"novelty"} and plain.base is of_term.base is None


def test_a_pass_gets_the_parameters_that_it_reads_in_its_order():
  learner = learner_of(term="on_distance")
  assert learner.scoring.reads(columns.REFERENCE), "the run keeps the reference, without a KL term"
  scores, params, reference = scored(learner)
  here, there = (float(x["embedding"][0, 0]) for x in (params, reference))
  got = np.asarray(scores.columns["distance"])[np.asarray(tiny_batch.rollout().mask)]
  np.testing.assert_allclose(got, there - 2 * here, rtol=1e-5)
  assert abs((there - 2 * here) - (here - 2 * there)) > 1e-3, "the other order"
  assert not learner_of(term="on_novelty").scoring.reads(columns.REFERENCE)


def test_a_statistic_of_the_anchor_s_pass_has_no_pass_of_its_own():
  learner = learner_of(term="on_uncertainty")
  assert not learner.scoring.columns
  scores, params, _ = scored(learner)
  stats = learner.scoring.score(params, tiny_batch.rollout(), learner.scoring.sampling)
  np.testing.assert_array_equal(scores.columns["uncertainty"], stats.entropy)
  assert np.ptp(np.asarray(stats.entropy)[np.asarray(tiny_batch.rollout().mask)]) > 0
  # With one optimizer batch the policy is its own anchor, and no pass is made.
  alone, _, _ = scored(learner_of(term="on_uncertainty", optimizer_batches=1))
  assert alone.columns is None


def test_the_reference_s_log_probs_are_a_column_that_a_term_may_ask_for():
  learner = learner_of(kl={"coef": 0.1})
  assert set(learner.scoring.columns) == {columns.REFERENCE_COLUMN}
  of_kl, _, _ = scored(learner)
  assert of_kl.columns is None
  learner = learner_of(term="on_ref_log_probs")
  assert learner.scoring.reads(columns.REFERENCE), "also without a KL term"
  scores, _, reference = scored(learner)
  (batch, _), _ = learner.batches(tiny_batch.rollout(), REWARDS, KEEP, scores)
  exact = learner.scoring.score(reference, tiny_batch.rollout(), learner.scoring.sampling).log_probs
  for column in (batch.columns["ref_log_probs"], of_kl.ref_log_probs[:4]):
    np.testing.assert_allclose(column, exact[:4], rtol=1e-5, atol=1e-6)


def test_what_is_refused():
  with pytest.raises(ValueError, match=r"column 'x' reads \['future'\]; allowed are current, base"):
    columns.register("x", reads=("future",))
  with pytest.raises(ValueError, match=r"advantage 'x' needs \['unheard'\]"):
    advantages.register("x", needs={"unheard"})
  with pytest.raises(ConfigError, match=r"'unheard': registered are .*novelty"):
    learner_of(term="on_unheard")
  assert "unheard" not in COLUMNS and "x" not in COLUMNS


def test_a_column_says_what_it_cannot_be_computed_under():
  def refuse(parameters, reader):
    raise ConfigError(f"parameters.train = {parameters.train!r}: {reader}. Fix: another.")

  columns.register("unfit", check=refuse)(novelty)
  advantages.register("by_unfit", needs={"unfit"})(lambda inputs, cfg: inputs.columns["unfit"])
  terms.register("on_unfit", columns={"unfit"}, coef=0.1)(
      lambda inputs, cfg: terms.TermOutput(inputs.batch.columns["unfit"], {}))
  for keys, reader in (({"by": "by_unfit"}, "advantage.name = 'by_unfit'"),
                       ({"term": "on_unfit"}, "term.name = 'on_unfit'")):
    with pytest.raises(ConfigError, match=rf"parameters\.train = 'all': {reader}"):
      learner_of(**keys)
