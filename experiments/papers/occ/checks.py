"""Config checks for a loss of the head that predicts two tokens ahead."""

import jax
import jax.numpy as jnp

from jaxrl_llm.config import ConfigError, EstimatorConfig, StepConfig, TermConfig, UpdateConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.registry import LOSS_TERMS
from jaxrl_llm.training import transforms


def check(updates: UpdateConfig, step: StepConfig, name: str) -> None:
  """Refuses what the head cannot be trained with.

  Args:
    updates, step: sections of a resolved config.
    name: of the loss, one of `term.name`.

  Raises:
    ConfigError: naming the keys and a change that works.
  """
  entry = LOSS_TERMS.parts(name)[name]
  name, loss = f"term.name = {name!r}", step.loss
  if updates.shared_prompts:
    raise ConfigError(
        f"{name} with updates.shared_prompts = True: the shared token before the last one of a "
        "prompt would have to predict another token for each row. Fix: "
        "updates.shared_prompts=False.")
  if loss.rules:
    raise ConfigError(
        f"{name} with vocabulary.{next(iter(loss.rules))} set: the tokens that the rule "
        "keeps of the head's distribution are others than the policy's. Fix: no rule of "
        "vocabulary, or term.name=none.")
  replaying = [transform_name for transform_name, transform in transforms.active(step).items()
               if transform.recomputes_anchor]
  if replaying:
    raise ConfigError(f"{name} with transform.name = {replaying[0]!r}: the head has no anchor in "
                      "the batch that is replayed. Fix: transform.name=none, or term.name=none.")
  if entry.columns:
    _check_anchor(updates.anchor, loss.estimator, name)
  if entry.transform is not None:
    _check_calibration(loss.term, entry)
  if entry.transform is not None and updates.optimizer_batches == 1:
    raise ConfigError(
        f"{name} with updates.optimizer_batches = 1: in a rollout's first optimizer batch the "
        "policy is its own anchor, nothing has changed, and the coefficient would stay at 0, where "
        "it begins. Fix: updates.optimizer_batches of 2 or more, or term.name=mtp_policy.")


def _check_calibration(term: TermConfig, entry) -> None:
  """Traces `calibrate` on 2 x 3 arrays, which a plugin may have brought."""
  tokens, mask = jax.ShapeDtypeStruct((2, 3), jnp.float32), jax.ShapeDtypeStruct((2, 3), bool)
  transform = entry.transform(LOSS_TERMS.numbers(term))
  with LOSS_TERMS.blamed(transform.name):
    jax.eval_shape(transform.coefficient, tokens, tokens, mask,
                   jax.ShapeDtypeStruct((), jnp.float32))


def _check_anchor(anchor: str, estimator: EstimatorConfig, name: str) -> None:
  """A loss that compares the head with its anchor."""
  if anchor == "behavior":
    raise ConfigError(
        f"{name} with updates.anchor = 'behavior': the sampler computes no log-probs of the head. "
        "Fix: updates.anchor=recomputed.")
  if columns := sorted(estimators.required(estimator)):
    raise ConfigError(
        f"{name} with estimator.name = {estimator.name!r}, which reads {', '.join(columns)} of "
        "the policy, not of the head. Fix: another estimator, or term.name=mtp_ce.")
  if estimators.spec(estimator.name).batch_statistics:
    raise ConfigError(
        f"{name} with estimator.name = {estimator.name!r}, whose weights are a statistic of "
        "the policy's log-probs, not of the head's. Fix: another estimator, or term.name=mtp_ce.")
