"""Terms of the loss: what each may read, how it is weighed, in which order, and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import tiny_batch

from jaxrl_llm.config import (
  ConfigError,
  CriticConfig,
  EntropyConfig,
  EstimatorConfig,
  KLConfig,
  LossConfig,
  TermConfig,
  from_dict,
)
from jaxrl_llm.objective import terms
from jaxrl_llm.objective.loss import policy_loss, policy_stats
from jaxrl_llm.ops import masked
from jaxrl_llm.registry import LOSS_TERMS
from jaxrl_llm.wiring import setup

MODEL = tiny_batch.MODEL
CFG = LossConfig(EstimatorConfig("ppo", clip_low=0.9, clip_high=9.0), temperature=0.9)


def batch_with_a_column():
  """The batch with a column `teacher`, which is NaN where nothing may be read."""
  batch = tiny_batch.make()
  teacher = np.random.default_rng(3).uniform(-3, -1, batch.rollout.mask.shape)
  live = np.asarray(batch.regularizer_weights) > 0
  return batch.replace(columns={"teacher": jnp.asarray(np.where(live, teacher, np.nan),
                                                       jnp.float32)})


def loss_of(term: TermConfig | None, batch=None, cfg: LossConfig = CFG):
  """(loss, metrics), compiled operation by operation."""
  batch = batch_with_a_column() if batch is None else batch
  return policy_loss(tiny_batch.parameters(), batch, model=MODEL,
                     cfg=dataclasses.replace(cfg, term=term))


def added(term: TermConfig, batch) -> float:
  """What the term adds to the loss."""
  return float(loss_of(term, batch)[0] - loss_of(None, batch)[0])


# --- a term of one's own


def pull(inputs: terms.TermInputs, cfg) -> terms.TermOutput:
  """(log pi - power log teacher)^2 + entropy."""
  difference = inputs.stats.log_probs - cfg.power * inputs.batch.columns["teacher"]
  loss = masked.masked(jnp.square(difference) + inputs.stats.entropy, inputs.live)
  return terms.TermOutput(loss, {"pull/loss": masked.mean(loss, inputs.live)})


def by_hand(batch, coef: float, power: float) -> float:
  """The weighed sum of `pull` in numpy."""
  stats = policy_stats(tiny_batch.parameters(), batch, model=MODEL, cfg=CFG,
                       stats=frozenset({"entropy"}))
  live = np.asarray(batch.regularizer_weights) > 0
  log_probs, teacher, entropy = (np.asarray(x, np.float64)[live] for x in (
      stats.log_probs, batch.columns["teacher"], stats.entropy))
  weights = np.asarray(batch.loss_weights * batch.correction_weights, np.float64)[live]
  return coef * float(np.sum(weights * ((log_probs - power * teacher)**2 + entropy)))


def check_pull(function, **options) -> None:
  terms.register("pull", stats={"entropy"}, columns={"teacher"}, coef=0.5, power=1.0, replace=True,
                 **{"weights": terms.POLICY, **options})(function)
  for numbers in ({}, {"coef": 2.0, "power": 0.3}):
    batch = batch_with_a_column()
    expected = by_hand(batch, **{"coef": 0.5, "power": 1.0, **numbers})
    np.testing.assert_allclose(added(TermConfig("pull", **numbers), batch), expected, rtol=1e-4)


def test_a_term_reads_statistics_columns_numbers_and_weights():
  check_pull(pull)
  loss, metrics = loss_of(TermConfig("pull"))
  assert np.isfinite(loss) and "pull/loss" in metrics and "policy/entropy" in metrics
  live = int(np.sum(np.asarray(batch_with_a_column().regularizer_weights) > 0))
  assert int(metrics["pull/loss"].count) == live, "the dropped row is in no metric"


def without_the_column(inputs, cfg):
  return pull(inputs._replace(batch=inputs.batch.replace(
      columns={"teacher": jnp.zeros_like(inputs.stats.log_probs)})), cfg)


def without_the_statistic(inputs, cfg):
  return pull(inputs._replace(stats=inputs.stats.replace(
      entropy=jnp.zeros_like(inputs.stats.log_probs))), cfg)


def weighed_twice(inputs, cfg):
  out = pull(inputs, cfg)
  return out._replace(per_token_loss=cfg.coef * out.per_token_loss)


@pytest.mark.parametrize(("wrong", "options"), [
    (without_the_column, {}), (without_the_statistic, {}), (weighed_twice, {}),
    (pull, {"weights": terms.REGULARIZER})])
def test_the_check_rejects(wrong, options):
  with pytest.raises(AssertionError):
    check_pull(wrong, **options)


# --- weights, order and several terms


def register_constant(name: str, value: float, weights: str = terms.REGULARIZER, numbers=None):
  """Enters a term whose loss is `value` on live tokens, with a metric that says that it ran."""

  @terms.register(name, weights=weights, **({"coef": 1.0} if numbers is None else numbers))
  def constant(inputs, cfg):
    del cfg
    loss = value * inputs.live.astype(jnp.float32)
    return terms.TermOutput(loss, {f"{name}/loss": masked.mean(loss, inputs.live)})

  return constant


def test_each_kind_of_weights():
  register_constant("of_policy", 1.0, terms.POLICY)
  register_constant("of_regularizer", 1.0)
  batch = tiny_batch.make()
  policy = float(jnp.sum(batch.loss_weights * batch.correction_weights))
  regularizer = float(jnp.sum(batch.regularizer_weights))
  assert abs(policy - regularizer) > 0.1
  assert added(TermConfig("of_policy"), batch) == pytest.approx(policy, rel=1e-4)
  assert added(TermConfig("of_regularizer"), batch) == pytest.approx(regularizer, rel=1e-4)


def test_terms_are_added_in_the_order_of_the_sections_and_then_of_their_names():
  for name in ("one", "other"):
    register_constant(name, 1.0)
  cfg = LossConfig(kl=KLConfig("k3", 0.1, "loss"), entropy=EntropyConfig(0.1),
                   critic=CriticConfig(), term=TermConfig("other,one"))
  entries = [term.entry for term in terms.active(cfg)]
  assert entries == [terms.KL, terms.ENTROPY, terms.CRITIC, LOSS_TERMS["other"], LOSS_TERMS["one"]]
  assert [term.numbers for term in terms.active(cfg)][:3] == [cfg.kl, cfg.entropy, cfg.critic]
  without = dataclasses.replace(cfg, kl=KLConfig("k3", 0.1, "reward"), entropy=EntropyConfig(0.0),
                                critic=None, term=None)
  assert terms.active(without) == []


def test_several_terms_add_up_and_share_a_number():
  for name, value in (("one", 1.0), ("ten", 10.0)):
    register_constant(name, value)
  batch = tiny_batch.make()
  one, ten, both = (added(TermConfig(name, coef=0.5), batch) for name in ("one", "ten", "ten,one"))
  assert both == pytest.approx(one + ten, rel=1e-4) and ten == pytest.approx(10 * one, rel=1e-4)
  assert {"one/loss", "ten/loss"} <= set(loss_of(TermConfig("ten,one"), batch)[1])
  assert added(TermConfig("none"), batch) == 0.0, "none stands alone"
  with pytest.raises(ConfigError, match=r"none stands beside others.*term\.name=one"):
    loss_of(TermConfig("none,one"), batch)


def test_a_coefficient_of_each_row_replaces_the_number():
  @terms.register("by_row", coef=3.0)
  def by_row(inputs, cfg):
    rows = jnp.arange(inputs.live.shape[0], dtype=jnp.float32)[:, None]
    return terms.TermOutput(inputs.live.astype(jnp.float32), {}, cfg.coef + rows)

  batch = tiny_batch.make()
  weights = np.asarray(batch.regularizer_weights)
  expected = np.sum((2.0 + np.arange(len(weights)))[:, None] * weights)
  assert added(TermConfig("by_row", coef=2.0), batch) == pytest.approx(expected, rel=1e-4)
  assert abs(expected - 2.0 * weights.sum()) > 0.1, "what a single number would give"


# --- the entropy's gradient


@functools.cache
def entropy_gradient():
  """The gradient of sum(weights * entropy), from the network's logits alone."""
  batch = tiny_batch.make()
  rows = batch.rollout
  positions = jnp.broadcast_to(jnp.arange(tiny_batch.LENGTH), rows.tokens.shape)
  segments = (positions < rows.length[:, None]).astype(jnp.int32)

  def total(params):
    hidden, _ = MODEL.hidden(params, rows.tokens, positions, segments)
    log_probs = jax.nn.log_softmax(hidden @ MODEL.head(params) / CFG.temperature)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, -1)
    return jnp.sum(batch.regularizer_weights[:, 1:] * entropy[:, :-1])

  return jax.jit(jax.grad(total))(tiny_batch.parameters())


def check_entropy(cfg: LossConfig) -> None:
  """The term adds -0.3 times the gradient of the weighed entropies."""
  def of(cfg):
    run = functools.partial(policy_loss, model=MODEL, cfg=cfg)
    return jax.jit(jax.grad(lambda params: run(params, tiny_batch.make())[0]))(
        tiny_batch.parameters())

  change = jax.tree.map(jnp.subtract, of(cfg), of(CFG))
  assert max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(entropy_gradient())) > 0.01
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, -0.3 * b, atol=2e-5), change,
               entropy_gradient())


def bonus(inputs, cfg):
  del cfg
  return terms.TermOutput(-masked.masked(inputs.stats.entropy, inputs.live), {})


def test_the_entropy_s_gradient_is_that_of_the_logits():
  check_entropy(dataclasses.replace(CFG, entropy=EntropyConfig(0.3)))


def test_a_term_that_asks_for_the_entropy_gets_its_gradient():
  terms.register("bonus", stats={"entropy"}, coef=0.3)(bonus)
  check_entropy(dataclasses.replace(CFG, term=TermConfig("bonus")))
  # One that does not say so finds the metric's entropy, which is a constant.
  terms.register("silent", coef=0.3)(bonus)
  with pytest.raises(AssertionError):
    check_entropy(dataclasses.replace(CFG, term=TermConfig("silent")))


# --- what is refused


@pytest.mark.parametrize(("options", "message"), [
    ({"stats": {"entropy", "logits"}}, r"term 'refused' needs \['logits'\]; allowed are "
     r"\['entropy', 'mtp_log_probs', 'sum_pi_squared', 'values'\]"),
    ({"weights": "both"}, "weights = 'both'; allowed are 'policy' and 'regularizer'"),
])
def test_unknown_statistics_and_weights_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    terms.register("refused", coef=0.1, **options)
  assert "refused" not in LOSS_TERMS.entries


def test_the_table_refuses():
  register_constant("once", 1.0)
  with pytest.raises(ValueError, match=r"term 'once' is registered already"):
    register_constant("once", 1.0)
  with pytest.raises(ConfigError, match=r"term\.name = 'onc': registered are .*once.*'once'\?"):
    terms.active(LossConfig(term=TermConfig("onc")))
  with pytest.raises(ConfigError, match=r"term\.name = 'once,once': a name stands there twice"):
    terms.active(LossConfig(term=TermConfig("once,once")))
  with pytest.raises(ConfigError, match=r"term\.power = 2.0: 'once' does not read it"):
    terms.active(LossConfig(term=TermConfig("once", power=2.0)))
  register_constant("heavier", 1.0, numbers={"coef": 2.0})
  with pytest.raises(ConfigError, match=r"term\.coef: 'once' and 'heavier' both read it"):
    terms.active(LossConfig(term=TermConfig("once,heavier")))


def of_rows(inputs, cfg):
  del cfg
  return terms.TermOutput(jnp.sum(inputs.stats.log_probs, -1), {})


def no_output(inputs, cfg):
  del cfg
  return inputs.stats.log_probs


def raising(inputs, cfg):
  del cfg
  return terms.TermOutput(inputs.batch.columns["teacher"], {})


def config_of(name: str):
  config = tiny.get_config("grpo")
  config.term.name = name
  return from_dict(config)


@pytest.mark.parametrize(("function", "options", "message"), [
    (of_rows, {"coef": 0.1}, r"per_token_loss"),
    (no_output, {"coef": 0.1}, r"a TermOutput was expected"),
    (raising, {"coef": 0.1}, r"TypeError|KeyError"),
    (bonus, {"stats": {"entropy"}}, r"coef"),
])
def test_a_term_that_does_not_keep_the_contract_is_refused_with_its_place(function, options,
                                                                           message):
  terms.register("broken", **options)(function)
  with pytest.raises(ConfigError, match=rf"term 'broken' \(.*test_terms\.py.*({message})"):
    setup.resolve(config_of("broken"))
  terms.register("whole", stats={"entropy"}, coef=0.1)(bonus)
  setup.resolve(config_of("whole"))
