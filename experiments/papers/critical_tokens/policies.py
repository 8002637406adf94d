"""The policies of toy.py: what they are trained on, their steps, and what they sample.

The base imitates a careless teacher. Two contrast models imitate its right and its wrong responses,
and each method of METHODS continues it on pairs.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.papers.critical_tokens import pairs as preference
from experiments.papers.critical_tokens.dpo import DpoConfig
from experiments.tables_lib import chains, generators
from jaxrl_llm import parallel
from jaxrl_llm.config import (
  AggregationConfig,
  MeshConfig,
  ModelConfig,
  OptimizerConfig,
  ParametersConfig,
  SamplerConfig,
  StepConfig,
)
from jaxrl_llm.models import Model, trainable
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.objective.loss import sft_loss
from jaxrl_llm.objective.row_stats import row_stats
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.train_step import init_state, make_train_step
from jaxrl_llm.types import Sampling, SupervisedBatch

MODEL = Model(ModelConfig(vocab_size=chains.VOCABULARY, width=64, num_layers=2, num_heads=4,
                          num_kv_heads=4, head_dim=16, mlp_width=128))
CONTRAST = ParametersConfig("lora", lora_targets=("mlp/(gate|up|down)",))  # rank 8, alpha 16
POLICY = ParametersConfig("lora", lora_rank=16, lora_alpha=32.0)  # all seven projections
CARELESS = 0.12  # share of the teacher's partial sums that are wrong
BASE_STEPS, BASE_RATE = 900, 3e-3
CONTRAST_STEPS, CONTRAST_RATE = 20, 3e-3
DPO_STEPS, DPO_RATE = 90, 1e-3
BATCH = 64
# Loss, and what rejected tokens are weighed by. `alike`: each token of a response by the mean of
# the weights that `scores` would give it, so that only the place of the weight is missing.
METHODS = {
    "DPO": (DpoConfig(), "ones"),
    "RPO": (DpoConfig(nll_coef=1.0), "ones"),
    "DPO, rejected tokens weighed alike": (DpoConfig(), "alike"),
    "cDPO": (DpoConfig(), "scores"),
    "cDPO, per position": (DpoConfig(code_compat=True), "scores"),
}
ENGINE = SamplerConfig(max_new_tokens=chains.RESPONSE, window=16, stop_ids=(chains.END,),
                       pad_id=chains.PAD)
COLUMNS = np.arange(chains.PROMPT + chains.RESPONSE)
MASK = COLUMNS >= chains.PROMPT
LENGTH = len(COLUMNS)


@functools.cache
def stepper(kind: str):
  """Returns (optimizer, compiled step) of the base, a contrast model or a method of METHODS."""
  mesh = parallel.make_mesh(MeshConfig(data=1), jax.devices()[:1])
  if kind in METHODS:
    loss, steps, rate, train = _preference(METHODS[kind][0]), DPO_STEPS, DPO_RATE, POLICY
  elif kind == "contrast":
    loss, steps, rate, train = sft_loss, CONTRAST_STEPS, CONTRAST_RATE, CONTRAST
  else:
    loss, steps, rate, train = sft_loss, BASE_STEPS, BASE_RATE, ParametersConfig()
  schedule = optax.warmup_cosine_decay_schedule(0.0, rate, steps // 10, steps)
  tx = make_optimizer(OptimizerConfig(), schedule)
  return tx, make_train_step(loss, MODEL, tx, StepConfig(parameters=train), mesh), steps, train


def _preference(cfg: DpoConfig):
  """`preference_loss` with the signature that a train step expects."""

  def loss(params, batch, *, model, cfg, pairs=cfg):
    del cfg
    return preference.preference_loss(params, batch, model=model, cfg=pairs)

  return loss


def train(kind: str, params, batches, key):
  """Returns merged parameters after the steps of a kind; the given ones stay usable."""
  tx, step, steps, cfg = stepper(kind)
  trained, frozen = trainable.split(jax.tree.map(jnp.array, params), cfg, key)
  state = init_state(trained, tx, frozen)
  for _ in range(steps):
    state, _ = step(state, next(batches))
  return trainable.merge(state.params, state.frozen, cfg)


def supervised(rows: np.ndarray, rng: np.random.Generator):
  """Yields batches of random rows [R, LENGTH], with the loss on the response only."""
  while True:
    tokens = rows[rng.integers(0, len(rows), BATCH)]
    mask = jnp.broadcast_to(jnp.asarray(MASK), tokens.shape)
    weights = loss_weights(mask, None, None, AggregationConfig("token"))
    yield SupervisedBatch(jnp.asarray(tokens), jnp.full(BATCH, LENGTH), weights)


def demonstrations(rng: np.random.Generator, seed: int):
  """Yields batches of a careless teacher's responses."""
  asked = chains.prompts(20_000, seed, False)
  yield from supervised(np.column_stack([asked, chains.careless(asked, CARELESS, rng)]), rng)


def generator(params, key, temperature: float) -> generators.Generator:
  """Returns the generator of responses to chains."""
  return generators.engine_generator(params, key, Sampling.of(temperature), model=MODEL, cfg=ENGINE)


def sampled(params, asked: np.ndarray, count: int, temperature: float, key) -> np.ndarray:
  """Returns rows [B * count, LENGTH], padded after their end, those of a prompt contiguous."""
  rows = np.full((len(asked) * count, LENGTH), chains.PAD, np.int32)
  rows[:, :chains.PROMPT] = np.repeat(asked, count, 0)
  steps = generator(params, key, temperature)(asked.tolist(), count, 0)
  for row, step in zip(rows, steps, strict=True):
    row[chains.PROMPT:chains.PROMPT + len(step.ids)] = step.ids
  return rows


def graded(rows: np.ndarray) -> np.ndarray:
  return chains.correct(rows[:, :chains.PROMPT], rows[:, chains.PROMPT:])


@functools.cache
def log_probs():
  def of_rows(params, rows):
    length = jnp.full(len(rows), LENGTH)
    return row_stats(params, rows, length, model=MODEL).log_probs

  return jax.jit(of_rows)


@functools.cache
def scores():
  def of_rows(pos, neg, rows, beta):
    length = jnp.full(len(rows), LENGTH)
    return preference.token_scores(pos, neg, rows, length, model=MODEL, beta=beta)

  return jax.jit(of_rows)


def sides(params, rows: np.ndarray, weights: np.ndarray) -> preference.Responses:
  """Returns rows as one side of pairs, with their log-probs under the reference."""
  mask = MASK & (rows != chains.PAD)
  return preference.Responses(
      jnp.asarray(rows), jnp.full(len(rows), LENGTH), jnp.asarray(mask),
      log_probs()(params, jnp.asarray(rows)), jnp.asarray(weights, jnp.float32))


def pair_batches(chosen, rejected, rng: np.random.Generator):
  """Yields random batches of BATCH // 2 pairs."""
  size = BATCH // 2
  while True:
    take = rng.integers(0, len(chosen.length), size)
    picked = jax.tree.map(operator.itemgetter(take), (chosen, rejected))
    yield preference.PreferenceBatch(*picked, jnp.full(size, 1 / size, jnp.float32))
