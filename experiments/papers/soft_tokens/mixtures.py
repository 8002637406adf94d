"""Soft tokens: a step of thought is a vector, the mean embedding of the next token plus noise.

  h0 = softmax(logits / tau) E            the mean: E [V, D] is the input embedding
  h  = h0 + sigma eps,  eps ~ N(0, I)     what is fed to the model, and the action of the policy

Source: Soft Tokens, Hard Truths, arXiv 2509.19170.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float

from jaxrl_llm.types import Rollout

SOFT, FUZZY, GAMMA = 0.5, 1e-4, 0.33  # the source's temperatures, and its noise
NORMS = ("entry", "row")

# Turns of a rollout that thinks in vectors or tokens and then answers: values of its `turn_id`.
THOUGHT, ANSWER = 1, 2


@struct.dataclass
class ThoughtMode:
  """The rule that feeds the steps of a thought back to the model. Its numbers are traced.

  Attributes:
    soft: static; False: the embedding of a sampled token, True: the mean embedding of the
      next-token distribution plus noise.
    temperature: scalar f32; without `soft`, 0 is greedy.
    sigma: scalar f32, standard deviation of the noise in each coordinate; unread without `soft`.
  """

  temperature: Float[Array, ""]
  sigma: Float[Array, ""]
  soft: bool = struct.field(pytree_node=False)


@struct.dataclass
class SoftRollout:
  """Rows of a prompt, a thought, the text that introduces the answer, and the answer.

  Attributes:
    rollout: its `turn_id` is THOUGHT or ANSWER, and 0 on text that was put in. In a soft thought,
      `tokens` are the most likely token of each step, and `behavior_log_probs` are
      `gaussian_step_logp` of the recorded inputs.
    inputs: [B, L, D] f32, what was fed in the steps of a soft thought; 0 elsewhere. None where the
      thought is of tokens.
  """

  rollout: Rollout
  inputs: Float[Array, "B L D"] | None


@struct.dataclass
class SoftBatch:
  """The batch of `soft_loss.soft_loss`.

  Attributes:
    sampled: the rows.
    advantages: [B, L] f32.
    loss_weights: [B, L] f32; the loss is the sum of weight times advantage times -log pi.
    mode: that the thoughts were sampled with.
    answer_temperature: scalar f32, that the answers were sampled with.
  """

  sampled: SoftRollout
  advantages: Float[Array, "B L"]
  loss_weights: Float[Array, "B L"]
  mode: ThoughtMode
  answer_temperature: Float[Array, ""]


def hard_thought(temperature: float = 1.0) -> ThoughtMode:
  """Returns the mode of thoughts in sampled tokens; temperature 0 takes the most likely ones.

  Raises:
    ValueError: a negative temperature.
  """
  if temperature < 0:
    raise ValueError(f"hard_thought(temperature={temperature}): allowed is temperature >= 0. "
                     "Fix: 0 for the most likely token, 1 for the model's own distribution.")
  return ThoughtMode(jnp.float32(temperature), jnp.float32(0), soft=False)


def soft_thought(sigma: float, temperature: float = SOFT) -> ThoughtMode:
  """Returns the mode of thoughts in vectors: `soft` in the source, and `fuzzy` at FUZZY.

  Args:
    sigma: see `noise_scale`; 0 feeds the means themselves.

  Raises:
    ValueError: a temperature of 0 or below, or a negative sigma.
  """
  if temperature <= 0 or sigma < 0:
    raise ValueError(f"soft_thought(sigma={sigma}, temperature={temperature}): allowed are sigma "
                     f">= 0 and temperature > 0. Fix: temperature {SOFT} (soft) or {FUZZY} "
                     "(fuzzy); hard_thought(0) for the most likely token.")
  return ThoughtMode(jnp.float32(temperature), jnp.float32(sigma), soft=True)


def noise_scale(embedding: Float[Array, "V D"], gamma: float = GAMMA,
                norm: str = "entry") -> Float[Array, ""]:
  """Returns sigma, the standard deviation of the noise in each coordinate, without gradient.

    entry:  gamma sqrt(mean over all entries of E^2), so that noise and embedding have lengths of
            ratio gamma
    row:    gamma sqrt(mean over rows of |E_v|^2) = sqrt(D) times as much

  The source says "root-mean-square norm of the embeddings", which may mean either. With `row` the
  noise would be sqrt(D) gamma times as long as an embedding, against its remark that the noise is a
  bit smaller than the embeddings, so `entry` is the default (own reading).

  Raises:
    ValueError: another `norm`.
  """
  if norm not in NORMS:
    raise ValueError(f"norm = {norm!r}: allowed are {', '.join(NORMS)}. Fix: entry, the default.")
  squares = jnp.square(lax.stop_gradient(embedding).astype(jnp.float32))
  return gamma * jnp.sqrt(jnp.mean(squares) if norm == "entry" else jnp.mean(jnp.sum(squares, -1)))


def mean_input(logits: Float[Array, "*S V"], embedding: Float[Array, "V D"],
               temperature) -> Float[Array, "*S D"]:
  """Returns h0 = softmax(logits / temperature) E in f32 (f64 for f64 input).

  It is differentiable in the logits and in E, both of which the source counts as parameters of the
  mean. At a very small temperature the gradient in the logits is 0 almost everywhere, and up to
  1 / (4 temperature) at near ties, so clip the gradient's norm.
  """
  wide = jnp.promote_types(logits.dtype, jnp.float32)
  return jax.nn.softmax(logits.astype(wide) / temperature, -1) @ embedding.astype(wide)


def gaussian_step_logp(inputs: Float[Array, "*S D"], means: Float[Array, "*S D"],
                       sigma) -> Float[Array, "*S"]:
  """Returns log pi(h) = -|h - h0|^2 / (2 sigma^2), up to a constant, in nats and f32 (f64 for f64).

  The inputs were sampled and are constants: the gradient is (h - h0)^T dh0 / sigma^2.

  Args:
    inputs: h, the recorded noisy vectors.
    means: h0 under the current policy.
    sigma: positive scalar; at 0, where there is no density, the result is 0 and has no gradient.
  """
  wide = jnp.promote_types(means.dtype, jnp.float32)
  squares = jnp.square(lax.stop_gradient(inputs).astype(wide) - means.astype(wide))
  sigma = jnp.asarray(sigma, wide)
  positive = sigma > 0
  return jnp.where(positive, -jnp.sum(squares, -1) / (2 * jnp.where(positive, sigma, 1) ** 2), 0)
