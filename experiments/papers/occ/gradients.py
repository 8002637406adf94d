"""The quotient of true gradients that OCC's calibrated coefficient estimates, and the accuracy of
the head that predicts two tokens ahead.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl_llm.config import StepConfig, TermConfig
from jaxrl_llm.models import Model, mtp, trainable
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.objective.row_stats import AHEAD
from jaxrl_llm.training import transforms
from jaxrl_llm.training.train_step import gradients
from jaxrl_llm.types import Rollout, TrainBatch, TrainState

# Without bounds, so that the quotient itself is measured.
UNBOUNDED = TermConfig("occ", lambda_min=None, lambda_max=None)


class Agreement(NamedTuple):
  """Scalars of one optimizer batch.

  Attributes:
    true: <g, g_mtp> / |g_mtp|^2 of the gradients of policy loss and of the head's policy loss in
      the trunk, which is embedding, blocks, norm and head.
    cosine: of these two gradients.
    calibrated: OCC's quotient of log-prob differences, without bounds.
  """

  true: Float[Array, ""]
  cosine: Float[Array, ""]
  calibrated: Float[Array, ""]


def agreement(state: TrainState, batch: TrainBatch, *, model: Model, cfg: StepConfig) -> Agreement:
  """Returns the Agreement under the state's parameters.

  Args:
    batch: with the log-probs of policy and head under the anchor.
    cfg: of the run; the loss of its head is not read.

  Raises:
    ValueError: not all parameters are trained, so that the head's would count as the trunk's.
  """
  if cfg.parameters.train != "all":
    raise ValueError(f"parameters.train = {cfg.parameters.train!r}: agreement compares gradients "
                     "of the trunk. Fix: parameters.train=all.")

  def gradient(term: TermConfig | None):
    step_cfg = dataclasses.replace(cfg, loss=dataclasses.replace(cfg.loss, term=term))
    gradient_tree = gradients(state.params, batch, loss=policy_loss, model=model, cfg=step_cfg,
                              frozen=state.frozen)[1]
    return jax.tree.leaves(mtp.without(gradient_tree))

  policy = gradient(None)
  combined = gradient(TermConfig("mtp_policy", coef=1.0))
  head = [total - policy_leaf for total, policy_leaf in zip(combined, policy, strict=True)]
  product, size, policy_size = _inner(policy, head), _inner(head, head), _inner(policy, policy)
  calibrating = StepConfig(dataclasses.replace(cfg.loss, term=UNBOUNDED), cfg.micro_batches,
                           cfg.parameters)
  params = trainable.merge(state.params, state.frozen, cfg.parameters)
  calibration = transforms.active(calibrating)["occ"]
  coefficient = calibration.before(params, batch, jnp.float32(jnp.nan),
                                   transforms.StepParts(model, calibrating, None))[1]
  return Agreement(product / size, product / jnp.sqrt(size * policy_size), coefficient)


def _inner(a: list, b: list) -> Float[Array, ""]:
  return sum((jnp.sum(x * y) for x, y in zip(a, b, strict=True)), jnp.float32(0))


def head_accuracy(params, rollout: Rollout, *, model: Model) -> tuple[Array, Array]:
  """Returns (right, all) of the policy tokens that the head's most likely token is compared with.

  Args:
    rollout: B rows on any device.
  """
  tokens = rollout.tokens
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  segments = (positions < rollout.length[:, None]).astype(jnp.int32)
  hidden, _ = model.hidden(params, tokens, positions, segments)
  states, head = model.ahead(params, hidden, tokens, positions, segments)
  guessed = jnp.argmax(states[:, :-AHEAD] @ head.astype(states.dtype), -1)
  predicted = rollout.mask[:, AHEAD:]
  return jnp.sum((guessed == tokens[:, AHEAD:]) & predicted), jnp.sum(predicted)

