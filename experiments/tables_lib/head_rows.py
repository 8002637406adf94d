"""Rows of the output head: replaced by random ones, and trained on frozen hidden states.

The rows of the answers are a small part of a head. Training only them repairs a readout if the
hidden states already distinguish the answers; `parameters.head_rows` names them.

Source: arXiv 2605.03258 (the repair and its hinge; the random rows are our own toy).
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxrl_llm.models import Model
from jaxrl_llm.ops.token_stats import scaled_logits
from jaxrl_llm.types import Params

MARGIN = 2.0  # nats


@struct.dataclass
class States:
  """One batch: final hidden states [B, D], and the ids [B] that they are to predict."""

  hidden: Float[Array, "B D"]
  answers: Int[Array, " B"]


def hinge(among: np.ndarray, margin: float = MARGIN) -> Callable:
  """Returns a loss: mean over the batch of max(0, margin + largest competing logit - right logit).

  The gradient reaches the row of the right answer only: the competing logit is a constant.

  Args:
    among: [V] bool, the ids that compete; the right one never does. Published is `others`, by which
      no answer competes with another.
    margin: nats.
  """
  return functools.partial(_hinge, among=jnp.asarray(among), margin=margin)


def others(model: Model, ids: np.ndarray) -> Bool[np.ndarray, " V"]:
  """Returns which ids are none of the answers: the published choice of what competes."""
  return ~np.isin(np.arange(model.config.vocab_size), ids)


def _hinge(params, batch: States, *, model, cfg, among, margin):
  del cfg  # there for the signature that losses share
  logits, answer_ids = _logits(params, batch, model), batch.answers[:, None]
  competing = among & (jnp.arange(logits.shape[-1]) != answer_ids)
  best = jax.lax.stop_gradient(jnp.where(competing, logits, -jnp.inf).max(-1))
  right = jnp.take_along_axis(logits, answer_ids, -1)[:, 0]
  return jnp.mean(jax.nn.relu(margin + best - right)), {}


def cross_entropy(params, batch: States, *, model, cfg):
  """Returns the mean negative log-likelihood of the answers over the full vocabulary, nats."""
  del cfg  # there for the signature that losses share
  logits = _logits(params, batch, model)
  return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch.answers)), {}


def _logits(params, batch: States, model: Model) -> Float[Array, "B V"]:
  return scaled_logits(batch.hidden, model.head(params), 1.0)


def randomised(model: Model, params: Params, ids: np.ndarray, seed: int,
               against: np.ndarray | None = None) -> Params:
  """Returns the parameters with random rows of the head, each as long as the one that it replaces.

  Args:
    ids: [K] int, of the rows.
    against: [D], a direction that the new rows are orthogonal to; None: any directions.

  Raises:
    ValueError: the head is tied.
  """
  require_untied(model)
  head = np.array(params["head"], np.float64)
  rows = np.random.default_rng([seed, 1]).normal(size=(len(ids), len(head)))
  if against is not None:
    unit = against / np.linalg.norm(against)
    rows -= np.outer(rows @ unit, unit)
  rows *= (np.linalg.norm(head[:, ids], axis=0) / np.linalg.norm(rows, axis=1))[:, None]
  head[:, ids] = rows.T
  return params | {"head": jnp.asarray(head, jnp.float32)}


def require_untied(model: Model) -> None:
  """Refuses a model whose head is its embedding.

  Rows of such a head are inputs, too: training them changes every prompt with these tokens, and a
  probe that agrees with them says nothing about the readout.

  Raises:
    ValueError: the head is tied.
  """
  if model.config.tie_head:
    raise ValueError("model.tie_head = True: the rows of the head are rows of the embedding. Fix: "
                     "model.tie_head=False, or head_rows.untied(model, params).")


def untied(model: Model, params: Params) -> tuple[Model, Params]:
  """Returns a model with an untied head, and its parameters, that compute the same logits."""
  if not model.config.tie_head:
    return model, params
  config = dataclasses.replace(model.config, tie_head=False)
  return dataclasses.replace(model, config=config), params | {"head": params["embedding"].T}
