"""Tries a run's own programs on the first device: the kernel of live blocks against its reference,
train step and decode chunk by time, and the gap between sampler and trainer.
`experiments/bench/device.py` is the command.

Weights are random, so nothing is downloaded. Work is counted by formula (model_flops.py) and held
against the device's published peaks (targets.py); measured seconds stand beside the planner's.
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.planning import model_flops, ring_reference
from experiments.planning.abstract import bytes_of
from experiments.planning.analysis import Program, analyse, tracing
from experiments.planning.device_cases import Case, timed
from experiments.planning.targets import Chip, Target
from jaxrl_llm import parallel
from jaxrl_llm.config import (
  EstimatorConfig,
  LossConfig,
  MeshConfig,
  ModelConfig,
  OptimizerConfig,
  RolloutConfig,
  SamplerConfig,
  StepConfig,
)
from jaxrl_llm.models import Model, kv_cache, live_comparison, row_attention, row_cache
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.rollouts import decode_attention, decoding, generate, hand_over
from jaxrl_llm.rollouts.chunk import ChunkInputs
from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.score import score
from jaxrl_llm.training.train_step import init_state, make_train_step, state_shardings
from jaxrl_llm.types import STOP_LENGTH, PromptBatch, Rollout, Sampling, TrainBatch

_PROMPT_SHARE = 8  # of a row that is trained on, one part in so many is the prompt


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the programs that are measured for each model.

  Attributes:
    lengths: tokens of the rows that are trained on.
    step_tokens: of one train step; it has as many rows as that makes, at least one.
    rows, contexts: of the batch that decodes, and columns of its cache.
    chunk: decode steps of one call.
    prompt, new: tokens of the rows that are sampled and scored again.
    repeats: timed calls after the one that compiles.
    blocks: columns of the kernel's blocks that are compared with the reference.
    kernels: (heads, key-value heads, their width) of the kernel there.
    kinds: how decoding reads the cache (rollout.decode_attention), for each a case.
    train_dtype: of the train step's products. XLA's CPU lacks the bfloat16 products that it
      needs, whose sums are float32.
  """

  lengths: tuple[int, ...] = (4096, 16_384)
  step_tokens: int = 32_768
  rows: int = 64
  contexts: tuple[int, ...] = (1024, 8192)
  chunk: int = 32
  prompt: int = 64
  new: int = 128
  repeats: int = 5
  blocks: tuple[int, ...] = (128, 512)
  kernels: tuple[tuple[int, int, int], ...] = ((32, 8, 128), (14, 2, 64))
  kinds: tuple[str, ...] = (decode_attention.KERNEL, decode_attention.WINDOWED)
  train_dtype: str = "bfloat16"


def cases(models: dict[str, ModelConfig], sizes: Sizes, chip: Chip | None) -> list[Case]:
  """Returns the measurements in order: the kernel, then of the models short rows first.

  Args:
    chip: the device's peaks; None: unknown, and the shares of them are None.
  """
  short, long = [], []
  compared = [Case(f"kernel {heads}/{kv_heads} of {size}, {dtype}, {block} columns", "kernel", 4,
                   functools.partial(compare, (heads, kv_heads, size, dtype), block))
              for block in sizes.blocks for heads, kv_heads, size in sizes.kernels
              for dtype in ("float32", "bfloat16")]
  for name, config in models.items():
    # The trainer keeps float32 parameters, and recomputes blocks, as runs of this size do.
    config = dataclasses.replace(config, compute_dtype="bfloat16", scan_layers=True, remat="full")
    model = Model(config, parallel.Layout(_mesh()))
    trainer = _in_dtype(model, sizes.train_dtype)
    trained = [Case(f"train {name} {length}", "train", max(1, sizes.step_tokens // length),
                    functools.partial(train, trainer, length, sizes, chip))
               for length in sizes.lengths]
    decoded = [[Case(f"decode {name} {context} {kind}", "decode", sizes.rows,
                     functools.partial(decode, (model, kind), context, sizes, chip))
                for kind in sizes.kinds] for context in sizes.contexts]
    gap_case = Case(f"gap {name}", "gap", sizes.rows, functools.partial(gap, model, sizes))
    short += [trained[0], *decoded[0], gap_case]
    long += [*trained[1:], *itertools.chain(*decoded[1:])]
  compared += [Case(f"engine {kind}", "engine", ring_reference.ROWS,
                    functools.partial(engine_of_the_ring, kind)) for kind in sizes.kinds]
  return compared + short + long


def _mesh():
  return parallel.make_mesh(MeshConfig(), jax.devices()[:1])


def _in_dtype(model: Model, dtype: str) -> Model:
  return dataclasses.replace(model, config=dataclasses.replace(model.config, compute_dtype=dtype))


def planned_seconds(program: Program, chip: Chip | None) -> float | None:
  """Returns the planner's seconds of a program on the first device; None where it has no known
  peaks, or does not hold the program.
  """
  if chip is None:
    return None
  device = jax.devices()[0]
  roofline = analyse(program, Target(device.device_kind, chip, (device,))).roofline
  return None if roofline is None else roofline.seconds


def compare(shapes: tuple[int, int, int, str], block: int, rows: int) -> dict:
  """Compares the kernel of live blocks with plain attention, on a small random cache of four rows.

  Args:
    shapes, block: as in `live_comparison.difference`.
    rows: not less than four.

  Raises:
    RuntimeError: they differ by more than rounding.
  """
  device = jax.devices()[0]
  difference = live_comparison.difference(shapes, block, device)
  if difference > live_comparison.LARGEST:
    raise RuntimeError(f"the kernel differs from the reference by {difference:.2g}: runs here go "
                       "on windowed")
  return {"difference": difference, "interpreted": device.platform != "tpu"}


def engine_of_the_ring(kind: str, rows: int) -> dict:
  """Compares what the engine samples with the record of an earlier one (ring_reference.py).

  Args:
    kind: how it reads the cache (rollout.decode_attention).
    rows: those of the record.

  Raises:
    RuntimeError: most rows differ. Some may where a device multiplies f32 in bfloat16.
  """
  numbers = ring_reference.compare(*ring_reference.sample(attention=kind))
  if numbers["equal_rows"] < rows / 2:
    raise RuntimeError(f"{numbers['equal_rows']} of {rows} rows have the tokens of the record")
  return numbers


# Training.


def train_flops(config: ModelConfig, rows: int, length: int) -> float:
  """Returns operations of one train step: 6 per weight and token, and attention.

  The head counts for completions only, and recomputation does not count.
  """
  prompt = length // _PROMPT_SHARE
  rollout = RolloutConfig(max_prompt_tokens=prompt, max_new_tokens=length - prompt)
  return model_flops.update(config, rollout, rows)


def train(model: Model, length: int, sizes: Sizes, chip: Chip | None, rows: int) -> dict:
  """Times train steps with the ctpo estimator; `mfu` and `planned_seconds` are None on an unknown
  device.
  """
  mesh, tx = _mesh(), make_optimizer(OptimizerConfig(learning_rate=1e-6))
  new = length - length // _PROMPT_SHARE
  cfg = StepConfig(LossConfig(EstimatorConfig("ctpo"), max_new_tokens=new))
  step = make_train_step(policy_loss, model, tx, cfg, mesh)

  def init(key):
    return init_state(model.init(key), tx)

  batch = parallel.to_global(_batch(model.config, rows, length), mesh)
  layout = state_shardings(model, tx, mesh)
  state = jax.jit(init, out_shardings=layout)(jax.random.key(0))

  def once():
    nonlocal state
    state, metrics = step(state, batch)
    return state, metrics

  flops = train_flops(model.config, rows, length)
  planned = planned_seconds(_program("train", step, (state, batch), model.config, flops), chip)
  timing = timed(once, sizes.repeats)
  seconds, tokens = timing["seconds"], rows * length
  kind = row_attention.choose(model.config, length, jax.default_backend(), row_attention.ONE)
  return {**timing, "planned_seconds": planned, "tokens": tokens,
          "tokens_per_second": tokens / seconds, "flops": flops, "attention": kind,
          "mfu": None if chip is None else flops / seconds / chip.flops}


def _program(name: str, program, arguments: tuple, config: ModelConfig, flops: float,
             **loops) -> Program:
  """Returns what the planner needs to know of a jitted program that this device runs."""
  rules = {"rules": frozenset()} if name == "decode" else {}
  return Program(name, tracing(program, *arguments, **rules), {}, devices=1, runs=1,
                 model_flops=flops, held=0, cache_inside=0,
                 head=(config.width, config.vocab_size), **{"trips": (), **loops})


def _batch(config: ModelConfig, rows: int, length: int) -> TrainBatch:
  """Returns random rows without padding; advantages are 1 and -1 in turn."""
  random, prompt = np.random.default_rng(0), length // _PROMPT_SHARE
  mask = np.broadcast_to(np.arange(length) >= prompt, (rows, length))
  unit, number = np.ones((rows, length), np.float32), np.arange(rows, dtype=np.int32)
  lengths = np.full(rows, length, np.int32)
  log_probs = np.where(mask, -np.log(config.vocab_size), 0).astype(np.float32)
  tokens = random.integers(0, config.vocab_size, (rows, length)).astype(np.int32)
  rollout = Rollout(tokens, mask, lengths, np.full(rows, prompt, np.int32), log_probs,
                    np.ones(rows, bool), np.full(rows, STOP_LENGTH, np.int32), 0 * tokens, number,
                    number)
  sign = np.where(number % 2, -1, 1).astype(np.float32)
  return TrainBatch(rollout, mask * sign[:, None], mask * unit / mask.sum(dtype=np.float32),
                    log_probs, unit)


# Decoding.


def decode_bytes(config: ModelConfig, weight_bytes: int, rows: int, filled: int,
                 steps: int) -> int:
  """Returns the bytes that decode steps must read: all weights in each, and the live columns.

  Args:
    weight_bytes: of the sampler's copy. An embedding that is no head is not read in full.
    filled: columns of the cache before the first step; each step fills another one and reads it.
  """
  per_column = rows * kv_cache.column_bytes(config)
  return steps * weight_bytes + per_column * sum(range(filled + 1, filled + steps + 1))


def _read_weights(params, config: ModelConfig) -> int:
  return bytes_of({name: x for name, x in params.items()
                   if name != "embedding" or config.tie_head})


def decode(reading: tuple[Model, str], context: int, sizes: Sizes, chip: Chip | None,
           rows: int) -> dict:
  """Times the engine's chunk of decode steps that fill the last columns of a cache.

  Args:
    reading: the model, and how it reads the cache (rollout.decode_attention).

  Returns:
    With `bandwidth_share`: seconds at the published bandwidth over measured seconds. It and
    `planned_seconds` are None on an unknown device. `attention` is how the cache is read: windowed
    on a device whose kernel differs from plain attention.
  """
  (model, kind), num_live = reading, context - sizes.chunk
  never = model.config.vocab_size  # a stop token beyond the vocabulary is never sampled
  side = decode_attention.heads_side_by_side(kind, model, context)
  built = decoding.build(model, sizes.chunk, (never,), False, None, bool(side))
  config = hand_over.decode_model(model).config
  params = built.decode_params(jax.jit(model.init)(jax.random.key(0)))
  # The key is an argument, because the compiler would compute the noise of a constant one itself.
  cache = jax.jit(functools.partial(_filled_cache, config, rows, context, side or 1))(
      jax.random.key(0))
  row_ones = jnp.full(rows, 1, jnp.int32)
  length = num_live * row_ones
  inputs = ChunkInputs(jnp.int32(sizes.chunk), jnp.int32(rows), row_ones, length, length,
                       sizes.chunk * row_ones, 0 * row_ones, jnp.arange(rows, dtype=jnp.int32),
                       columns=num_live)
  draw, steps = Draw(jax.random.key(1), Sampling.of(1.0)), []
  planned = planned_seconds(
      _program("decode", built.decode, (params, cache, None, inputs, draw), config, 0.0,
               trips=(sizes.chunk,), live=(num_live + sizes.chunk / 2) / context), chip)

  def once():
    nonlocal cache
    cache, sampled = built.decode(params, cache, None, inputs, draw, rules=frozenset())
    steps.append(sampled.steps)
    return sampled

  timing = timed(once, sizes.repeats)
  if {int(n) for n in steps} != {sizes.chunk}:
    raise RuntimeError(f"chunks took {steps} steps instead of {sizes.chunk}")
  seconds, tokens = timing["seconds"], rows * sizes.chunk
  num_bytes = decode_bytes(config, _read_weights(params, config), rows, num_live, sizes.chunk)
  attention = decode_attention.KERNEL if side else decode_attention.WINDOWED
  return {**timing, "planned_seconds": planned, "attention": attention, "tokens": tokens,
          "tokens_per_second": tokens / seconds, "bytes": num_bytes,
          "bandwidth_share": None if chip is None else num_bytes / seconds / chip.bandwidth}


def _filled_cache(config: ModelConfig, rows: int, columns: int, side: int,
                  key) -> row_cache.RowCache:
  """Returns a cache with random keys and values, equal for all rows."""

  def noise(x):
    row = jax.random.normal(key, x.shape[1:], x.dtype)
    return jnp.broadcast_to(row, x.shape)

  return jax.tree.map(noise, row_cache.empty(config, rows, columns, side))


# The gap.


def gap(model: Model, sizes: Sizes, rows: int) -> dict:
  """Samples rows at temperature 1 in bf16, and scores them again as the trainer does.

  Returns:
    For a trainer in bf16 and one in f32 with exact products: mean and largest |difference| of a
    sampled token's log-prob, nats, and the mean of k3, an estimate of KL(sampler || trainer).
  """
  params, config = jax.jit(model.init)(jax.random.key(0)), model.config
  built = SamplerConfig(max_new_tokens=sizes.new, window=sizes.new, stop_ids=(config.vocab_size,))
  sampler = hand_over.decode_model(model)
  sample = jax.jit(functools.partial(generate, model=sampler, cfg=built, rules=frozenset()))
  number, random = np.arange(rows, dtype=np.int32), np.random.default_rng(0)
  tokens = random.integers(0, config.vocab_size, (rows, sizes.prompt)).astype(np.int32)
  prompts = PromptBatch(tokens, np.full(rows, sizes.prompt, np.int32), number, number)
  rollout = sample(hand_over.make(model, None)(params), prompts, jax.random.key(1),
                   Sampling.of(1.0))
  summary: dict[str, Any] = {"tokens": int(rollout.mask.sum())}
  for dtype, precision in (("bfloat16", "default"), ("float32", "highest")):
    scorer = jax.jit(functools.partial(score, model=_in_dtype(model, dtype), rules=frozenset(),
                                       cfg=StepConfig(LossConfig(max_new_tokens=sizes.new))))
    with jax.default_matmul_precision(precision):
      log_probs = scorer(params, rollout, Sampling.of(1.0)).log_probs
    summary[dtype] = gap_numbers(np.asarray(log_probs), np.asarray(rollout.behavior_log_probs),
                                 np.asarray(rollout.mask))
  return summary


def gap_numbers(trainer: np.ndarray, sampler: np.ndarray, mask: np.ndarray) -> dict[str, float]:
  """Returns `mean`, `max` and `k3` of log-probs [B, L], in nats, where the mask is True."""
  difference = (trainer.astype(np.float64) - sampler)[mask]
  return {"mean": float(np.abs(difference).mean()), "max": float(np.abs(difference).max()),
          "k3": float(np.mean(np.expm1(difference) - difference))}
