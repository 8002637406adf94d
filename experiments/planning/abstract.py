"""The arguments of a run's programs as shapes and shardings; no array is made."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.config import Config, RolloutConfig
from jaxrl_llm.models import Model, trainable
from jaxrl_llm.parallel import divisions
from jaxrl_llm.rollouts.next_token import rules_on
from jaxrl_llm.runs.carried import abstract_scores
from jaxrl_llm.training.score import Scores
from jaxrl_llm.training.train_step import carrying_shardings, init_state, state_shardings
from jaxrl_llm.training.transforms import with_carried
from jaxrl_llm.types import Params, PromptBatch, Rollout, Sampling, TrainBatch, TrainState
from jaxrl_llm.wiring.learner import Learner, make_learner
from jaxrl_llm.wiring.sampler import sampling_of
from jaxrl_llm.wiring.scoring import INTERPOLATED

# The task is not built, because its data may be absent. Its ids change no shape.
STOP_IDS, PAD_ID = (1,), 0


@dataclasses.dataclass(frozen=True)
class Planned:
  """A run's learner and everything that its programs are called with.

  Attributes:
    learner: made as a run makes it.
    sizes: of the rollout on `rollout_mesh`.
    rules: fields of Sampling that prune the sampler's vocabulary.
    rollout_mesh: the devices that sample.
    state: state of the trainer.
    params: as the model reads them.
    prompts, rollout, scores, rewards, keep: of an iteration.
    sampling, key: arguments of the sampler.
  """

  learner: Learner
  sizes: RolloutConfig
  rules: frozenset[str]
  rollout_mesh: Mesh
  state: TrainState
  params: Params
  prompts: PromptBatch
  rollout: Rollout
  scores: Scores
  rewards: jax.ShapeDtypeStruct
  keep: jax.ShapeDtypeStruct
  sampling: Sampling
  key: jax.ShapeDtypeStruct

  @property
  def head(self) -> tuple[int, int]:
    """Shape of the output head."""
    model = self.learner.model.config
    return model.width, model.vocab_size

  @functools.cached_property
  def batch(self) -> TrainBatch:
    """One optimizer batch."""
    batches, _ = jax.eval_shape(self.learner.batches, self.rollout, self.rewards, self.keep,
                                self.scores)
    return by_rows(batches[0], self.learner.mesh)


def plan(cfg: Config, devices) -> Planned:
  """Returns what the run of a resolved config with model shapes is, on described devices.

  Raises:
    ConfigError: the devices or rows do not fit the mesh.
  """
  mesh = parallel.make_mesh(cfg.mesh, devices)
  rollout_mesh = parallel.rollout_mesh(cfg.mesh, mesh, devices)
  divisions.check(divisions.RowSections.of(cfg), mesh, rollout_mesh)
  divisions.check_heads(cfg.model.num_kv_heads, cfg.mesh)
  shapes = dataclasses.replace(cfg.model, value_head=cfg.has_critic, mtp=cfg.has_mtp)
  model = Model(shapes, parallel.Layout(mesh))
  trainable.check(cfg.parameters, model)
  learner = make_learner(cfg, model, mesh, STOP_IDS)
  params = placed(model.shapes(),
                  parallel.param_shardings(model, mesh))
  rollout = _rollout(cfg.rollout, mesh)
  on_policy = not (cfg.updates.staleness or cfg.updates.in_flight)
  scores = by_rows(abstract_scores(learner.scoring, params, rollout, on_policy=on_policy), mesh)
  if learner.scoring.anchor == INTERPOLATED:
    scores = scores.replace(step=jax.ShapeDtypeStruct((), jnp.int32))
  per_row = functools.partial(_array, mesh, (cfg.rollout.rows,))
  rules = rules_on(sampling_of(cfg.rollout, cfg.vocabulary, "sampler"))
  return Planned(learner, cfg.rollout, rules, rollout_mesh, _state(learner), params,
                 _prompts(cfg.rollout, mesh), rollout, scores, per_row(jnp.float32), per_row(bool),
                 _sampling(learner), jax.eval_shape(functools.partial(jax.random.key, 0)))


def _state(learner: Learner) -> TrainState:
  model, cfg = learner.model, learner.cfg
  trained, frozen = trainable.shapes_of(model, cfg.parameters)
  state = jax.eval_shape(functools.partial(init_state, tx=learner.optimizer), trained,
                         frozen=frozen)
  layout = state_shardings(model, learner.optimizer, learner.mesh, cfg.parameters)
  return placed(with_carried(state, cfg, functools.partial(jax.eval_shape, lambda x: x)),
                carrying_shardings(layout, cfg, learner.mesh))


def _prompts(cfg: RolloutConfig, mesh: Mesh) -> PromptBatch:
  per_row = _array(mesh, (cfg.rows,), jnp.int32)
  tokens = _array(mesh, (cfg.rows, cfg.max_prompt_tokens), jnp.int32)
  return PromptBatch(tokens, per_row, per_row, per_row)


def _rollout(cfg: RolloutConfig, mesh: Mesh) -> Rollout:
  array, shape = functools.partial(_array, mesh), (cfg.rows, cfg.row_length)
  per_row, flag = array((cfg.rows,), jnp.int32), array((cfg.rows,), bool)
  turns = {}
  if cfg.max_turns:
    turns = {"turn_id": array(shape, jnp.int32), "void": flag}
  return Rollout(array(shape, jnp.int32), array(shape, bool), per_row, per_row,
                 array(shape, jnp.float32), flag, per_row, array(shape, jnp.int32), per_row,
                 per_row, **turns)


def _sampling(learner: Learner) -> Sampling:
  def abstract(x):
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))

  return jax.tree.map(abstract, learner.scoring.sampling)


def _array(mesh: Mesh, shape: tuple[int, ...], dtype) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, dtype, sharding=parallel.rows(mesh))


def by_rows(tree, mesh: Mesh):
  """Returns the tree with the leading axis of each array over the devices that hold rows."""
  return jax.tree.map(lambda x: _array(mesh, x.shape, x.dtype), tree)


def placed(tree, shardings):
  """Returns the abstract arrays with these shardings."""

  def put(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(put, tree, shardings)


def bytes_of(tree) -> int:
  """Returns the bytes that one device holds of abstract arrays, by the shapes of their shards."""
  return sum(_shard_bytes(x) for x in jax.tree.leaves(tree))


def _shard_bytes(x) -> int:
  sharding = getattr(x, "sharding", None)
  shape = x.shape if sharding is None else sharding.shard_shape(x.shape)
  return math.prod(shape) * x.dtype.itemsize
