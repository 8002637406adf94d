"""A linear probe of hidden states, and its overlap with the output head.

A linear probe says whether a number can be read from a state at all; the angle between its weights
and the rows of the head says whether the head looks there. A model may answer in three ways, which
are never mixed here:

  restricted   the largest logit among the allowed answers
  full         the largest logit of the full vocabulary
  generated    greedy decoding up to a stop token, graded by the task

A prompt that `full` answers is answered by `restricted`, too.

Source: arXiv 2605.03258.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from experiments.tables_lib.residual_stream import hidden_states, normed
from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.models import Model
from jaxrl_llm.ops.token_stats import scaled_logits
from jaxrl_llm.rollouts.sampler import generate
from jaxrl_llm.runs.rollout_batch import prompt_batch
from jaxrl_llm.types import Params, Problem, PromptBatch, Sampling, Task

ALPHAS = tuple(10.0**power for power in range(-3, 4))


def lens(model: Model, params, states: Float[Array, "... D"]) -> Float[Array, "... V"]:
  """Returns the logits, f32, that the final norm and the head make of any layer's states (logit
  lens). For layer N they are the model's own logits.
  """
  return scaled_logits(normed(model, params, states), model.head(params), 1.0)


@dataclasses.dataclass(frozen=True)
class Probe:
  """A linear map from a state to a number: states @ weights + bias.

  Attributes:
    weights: [D] float64.
    bias: the prediction for a state of zeros.
    alpha: strength of the ridge penalty.
  """

  weights: np.ndarray
  bias: float
  alpha: float

  def predict(self, states: np.ndarray) -> np.ndarray:
    """Returns a number for each state, [...] float64."""
    return np.asarray(states, np.float64) @ self.weights + self.bias

  def round(self, states: np.ndarray, low: int, high: int) -> np.ndarray:
    """Returns the nearest integer from low to high for each state."""
    return np.clip(np.rint(self.predict(states)), low, high).astype(int)

  def r_squared(self, states: np.ndarray, targets: np.ndarray) -> float:
    """Returns 1 - sum of squared errors / sum of squares about the mean of the targets."""
    targets = np.asarray(targets, np.float64)
    errors = np.square(targets - self.predict(states)).sum()
    return float(1 - errors / np.square(targets - targets.mean()).sum())


def ridge(states: np.ndarray, targets: np.ndarray, alpha: float) -> Probe:
  """Minimises sum (targets - states @ w - b)^2 + alpha |w|^2 exactly; b has no penalty.

  Args:
    states: [M, D].
    targets: [M].
    alpha: 0 or more; with 0, the states must span all D dimensions.
  """
  states, targets = np.asarray(states, np.float64), np.asarray(targets, np.float64)
  centre, mean = states.mean(0), targets.mean()
  moved = states - centre
  penalty = alpha * np.eye(moved.shape[1])
  weights = np.linalg.solve(moved.T @ moved + penalty, moved.T @ (targets - mean))
  return Probe(weights, float(mean - centre @ weights), alpha)


def fit_probe(states: np.ndarray, targets: np.ndarray, held_out: tuple[np.ndarray, np.ndarray],
              alphas: tuple[float, ...] = ALPHAS) -> Probe:
  """Returns the ridge probe whose alpha has the largest R^2 on held-out data.

  Args:
    states: [M, D], that the weights are fitted to.
    targets: [M].
    held_out: (states, targets), that only choose alpha. A report needs a third set.
    alphas: candidates.
  """
  probes = [ridge(states, targets, alpha) for alpha in alphas]
  return max(probes, key=lambda probe: probe.r_squared(*held_out))


def alignment(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Returns |cos| of the weights [D] with each of the rows [K, D], [K] float64."""
  weights, rows = np.asarray(weights, np.float64), np.asarray(rows, np.float64)
  return np.abs(rows @ weights) / (np.linalg.norm(rows, axis=-1) * np.linalg.norm(weights))


def chance_alignment(width: int) -> float:
  """Returns the mean |cos| of two random directions: Gamma(D/2) / (sqrt(pi) Gamma((D + 1)/2))."""
  return math.exp(math.lgamma(width / 2) - math.lgamma((width + 1) / 2)) / math.sqrt(math.pi)


def ranks(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
  """Returns 1 + the number of logits larger than the id's, for each id.

  Args:
    logits: [..., V].
    ids: [...] int.
  """
  id_logits = np.take_along_axis(logits, ids[..., None], -1)
  return 1 + (logits > id_logits).sum(-1)


def restricted(logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
  """Returns the id among `allowed` [K] with the largest of the logits [..., V]."""
  return np.asarray(allowed)[np.argmax(logits[..., allowed], -1)]


def last_states(model: Model, params: Params, prompts: PromptBatch,
                layers: tuple[int, ...]) -> Float[Array, "K B D"]:
  """Returns the states of chosen layers at the last token of each prompt.

  Args:
    layers: as in `residual_stream.hidden_states`.
  """
  return _states(params, jnp.asarray(prompts.tokens), jnp.asarray(prompts.prompt_length),
                 model=model, layers=layers)[:, :, 0]


@functools.partial(jax.jit, static_argnames=("model", "layers"))
def _states(params, tokens: Int[Array, "B P"], length: Int[Array, " B"], *, model, layers):
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  segments = (positions < length[:, None]).astype(jnp.int32)
  return hidden_states(model, params, tokens, positions, segments, length[:, None] - 1, layers)


@dataclasses.dataclass(frozen=True)
class Modes:
  """The problems answered correctly, [M] bool, in each of the three ways."""

  restricted: np.ndarray
  full: np.ndarray
  generated: np.ndarray


def decode(model: Model, params: Params, task: Task, problems: list[Problem], allowed: np.ndarray,
           *, max_new_tokens: int = 4) -> Modes:
  """Answers problems whose answer is one token in the three ways.

  Args:
    allowed: [K] int, ids of all possible answers.
    max_new_tokens: of a generated completion, which is wrong if it is longer.

  Raises:
    ValueError: an answer is not one of the allowed tokens.
  """
  encoded = [task.tokenizer.encode(problem.answer) for problem in problems]
  bad = [problem for problem, ids in zip(problems, encoded, strict=True)
         if len(ids) != 1 or ids[0] not in allowed]
  if bad:
    raise ValueError(f"the answer {bad[0].answer!r} of {bad[0].prompt!r} is not one of the allowed "
                     f"tokens {list(map(int, allowed))}. Fix: allowed=ids of all answers.")
  answers = np.array(encoded)[:, 0]
  prompts = prompt_batch(task, problems, max(len(task.render(problem)) for problem in problems))
  state = last_states(model, params, prompts, (model.config.num_layers,))[0]
  logits = np.asarray(lens(model, params, state))
  return Modes(restricted(logits, allowed) == answers, logits.argmax(-1) == answers,
               _generated(model, params, task, problems, prompts, max_new_tokens))


def _generated(model, params, task, problems, prompts, max_new_tokens) -> np.ndarray:
  stops = tuple(sorted(task.stop_ids))
  cfg = SamplerConfig(max_new_tokens=max_new_tokens, window=max_new_tokens, stop_ids=stops,
                      pad_id=task.tokenizer.pad_token_id)
  rollout = jax.device_get(_greedy(params, prompts, jax.random.key(0), model=model, cfg=cfg))
  completions = [row[mask] for row, mask in zip(rollout.tokens, rollout.mask, strict=True)]
  texts = [task.tokenizer.decode(ids[~np.isin(ids, stops)]) for ids in completions]
  right = [task.reward(*pair).correct for pair in zip(problems, texts, strict=True)]
  return np.array(right) & ~rollout.truncated


@functools.partial(jax.jit, static_argnames=("model", "cfg"))
def _greedy(params, prompts, key, *, model, cfg):
  return generate(params, prompts, key, Sampling.of(0.0), model=model, cfg=cfg, rules=frozenset())
