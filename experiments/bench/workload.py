"""Workload W: one GRPO iteration of a small decoder, from the functions that a run uses.

Every row samples `new` tokens, because its stop id is beyond the vocabulary. Dimension letters are
defined in jaxrl_llm/types.py; B = prompts * group rows.
"""

import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import config as config_lib
from jaxrl_llm import parallel
from jaxrl_llm.config import LossConfig, ModelConfig, SamplerConfig, StepConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.rollouts import engine, engines, generate
from jaxrl_llm.training.batches import optimizer_batches
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.packing import ROWS, Packer
from jaxrl_llm.training.score import Scores, score
from jaxrl_llm.training.train_step import init_state, make_train_step, state_shardings
from jaxrl_llm.types import Bins, PromptBatch, Rollout, Sampling

FIRST_ID = 3  # ids below stand for padding, end and beginning
MEAN_OVER_MAX = 0.4  # of the ragged lengths
PARTS = ("generation", "ragged_generation", "scoring", "train_step", "iteration",
         "ragged_iteration")


@dataclasses.dataclass(frozen=True)
class Shape:
  """Sizes; the defaults are W. Tokens per row: `prompt` + `new`. Rows divide over `devices`."""

  model: ModelConfig = ModelConfig(vocab_size=2048, width=256, num_layers=6, num_heads=8,
                                   num_kv_heads=4, head_dim=32, mlp_width=768, rope_base=1e6)
  prompts: int = 8
  group: int = 8
  prompt: int = 64
  new: int = 128
  window: int = 32
  devices: int = 1

  @property
  def rows(self) -> int:
    return self.prompts * self.group


@dataclasses.dataclass(frozen=True)
class Programs:
  """The compiled parts of an iteration, for one number of micro-batches.

  Attributes:
    shape, micro, mesh, model, tx: sizes, number of micro-batches, and what the parts are made of.
    sample: (params, prompts, key, sampling, max_new) -> (Rollout, Stats): the engine, in which a
      group shares its prompt.
    single: (params, prompts, key, sampling) -> Rollout: `generate`, one program.
    batches: (rollout, rewards, keep, scores) -> ([TrainBatch], metrics).
    score: (params, rollout, sampling) -> TokenStats.
    step: (state, batch, Packing or None) -> (state, metrics).
    packer: of ragged rows; a micro-batch has the tokens of an unpacked one.
  """

  shape: Shape
  micro: int
  mesh: Any
  model: Model
  tx: Any
  sample: Any
  single: Any
  batches: Any
  score: Any
  step: Any
  packer: Packer


def build(shape: Shape, micro: int) -> Programs:
  """Returns the programs for the first devices; nothing is compiled yet."""
  mesh = parallel.make_mesh(config_lib.MeshConfig(), jax.devices()[:shape.devices])
  model = Model(shape.model, parallel.Layout(mesh))
  tx = make_optimizer(config_lib.OptimizerConfig(learning_rate=1e-5, max_grad_norm=1.0))
  by_rows = functools.partial(jax.jit, out_shardings=parallel.rows(mesh))
  never = SamplerConfig(shape.group, shape.new, shape.window, stop_ids=(shape.model.vocab_size,))
  batch_cfg = config_lib.BatchConfig(shape.group, 1, config_lib.AdvantageConfig("grpo"),
                                     config_lib.AggregationConfig("sequence"))
  cfg = StepConfig(LossConfig(config_lib.EstimatorConfig("ppo"), max_new_tokens=shape.new), micro)
  sizes = engine.EngineConfig(**dataclasses.asdict(never), slots=shape.rows, compact=2,
                              shared_prefix=True)

  run = engine.run if shape.devices == 1 else engines.run  # as rollout.engine_per_device

  def sample(params, prompts, key, sampling, max_new):
    return run(params, prompts, key, sampling, model=model, cfg=sizes, mesh=mesh, max_new=max_new)

  return Programs(
      shape,
      micro,
      mesh,
      model,
      tx,
      sample=sample,
      single=by_rows(functools.partial(generate, model=model, cfg=never)),
      batches=jax.jit(functools.partial(optimizer_batches, cfg=batch_cfg)),
      score=by_rows(functools.partial(score, model=model, cfg=cfg)),
      step=make_train_step(policy_loss, model, tx, cfg, mesh),
      packer=_packer(shape, micro, mesh),
  )


def _packer(shape: Shape, micro: int, mesh) -> Packer:
  length = shape.prompt + shape.new
  per_device = max(1, shape.rows // micro // shape.devices)
  return Packer(Bins(length, ROWS), per_device, shape.devices)


def with_micro(programs: Programs, micro: int) -> Programs:
  """Returns the same for other micro-batches; generation and weighting stay compiled."""
  other = build(programs.shape, micro)
  return dataclasses.replace(other, sample=programs.sample, single=programs.single,
                             batches=programs.batches)


def start(programs: Programs):
  """Returns a TrainState with random parameters, in the layout in which a step leaves it.

  With another layout the second step would compile again.
  """

  def init(key):
    return init_state(programs.model.init(key), programs.tx)

  shardings = state_shardings(programs.model, programs.tx, programs.mesh)
  return jax.jit(init, out_shardings=shardings)(jax.random.key(0))


def prompts(programs: Programs, index: int) -> PromptBatch:
  """Returns the random prompts of iteration `index`, each on `group` rows."""
  shape = programs.shape
  ids = np.random.default_rng(index).integers(FIRST_ID, shape.model.vocab_size,
                                              (shape.prompts, shape.prompt))
  row = np.arange(shape.rows, dtype=np.int32)
  batch = PromptBatch(np.repeat(ids.astype(np.int32), shape.group, 0),
                      np.full(shape.rows, shape.prompt, np.int32), index * shape.rows + row,
                      row // shape.group)
  return parallel.to_global(batch, programs.mesh)


def even_share(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """Returns the synthetic reward [B]: the share of even ids in each completion, on the host."""
  return np.array([np.mean(row[where] % 2 == 0) for row, where in zip(tokens, mask, strict=True)],
                  np.float32)


def rollout(programs: Programs, params, index: int, max_new=None) -> tuple[Rollout, engine.Stats]:
  """Runs one generation; `max_new` [B] says where each row ends, None: all at `new`."""
  return programs.sample(params, prompts(programs, index), jax.random.key(index),
                         Sampling(jnp.float32(1.0)), max_new)


def train_batch(programs: Programs, on_device: Rollout, host: Rollout):
  """Computes rewards, advantages and weights of a rollout that is on the device and on the host.

  The anchor is the current policy, so nothing is scored.
  """
  rewards = even_share(host.tokens, host.mask)
  rewards, keep = parallel.to_global((rewards, np.ones(len(rewards), bool)), programs.mesh)
  (batch,), _ = programs.batches(on_device, rewards, keep, Scores())
  return batch


def iteration(programs: Programs, state, index: int, max_new=None):
  """Returns ((new state, metrics), seconds until the rollout is on the host).

  With `max_new` [B], which says where each row ends, the train step packs the rows.
  """
  begin = time.perf_counter()
  on_device, _ = rollout(programs, state.params, index, max_new)
  host = parallel.gather_host(on_device)
  sampled = time.perf_counter() - begin
  packing = None if max_new is None else programs.packer.pack(host)
  return programs.step(state, train_batch(programs, on_device, host), packing), sampled


def ragged_lengths(shape: Shape) -> np.ndarray:
  """Returns the new tokens of each row, [B], 1 to `new`, with mean / max = 0.4.

  They are quantiles of u^1.5, u uniform, in a seeded order.
  """
  quantiles = (np.arange(shape.rows) + 0.5) / shape.rows
  lengths = np.ceil(shape.new * quantiles**(1 / MEAN_OVER_MAX - 1)).astype(int)
  lengths[-1] = shape.new
  return np.random.default_rng(0).permutation(lengths)
