"""Supervised training on demonstrations, before the first rollout; the result is cached in the
workdir.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from jaxrl_llm import parallel
from jaxrl_llm.config import AggregationConfig, StepConfig
from jaxrl_llm.models import hf, trainable
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.objective.loss import sft_loss
from jaxrl_llm.runs import checkpoints
from jaxrl_llm.runs.setup import Parts
from jaxrl_llm.tasks import make_task
from jaxrl_llm.training.train_step import (
  NonFiniteError,
  init_state,
  make_optimizer,
  make_train_step,
  state_shardings,
  warm_start_schedule,
)
from jaxrl_llm.types import SupervisedBatch

SEED_OFFSET = 1_000_003  # demonstrations are drawn from another stream of problems than rollouts
ADAPTER_KEY = 0x10A


class Start(NamedTuple):
  """Parameters that a run starts from: the trained tree and the frozen one of `trainable.split`."""

  params: Any
  frozen: Any


def warm_start(parts: Parts, workdir: Path) -> Start:
  """The start after `warm_start.steps` updates of the trained parameters.

  They are kept in `workdir/warm_start`; of a checkpoint to start from (`pretrained`) only what the
  updates changed is, and nothing where there are none.
  """
  cfg, path = parts.cfg, Path(workdir) / "warm_start"
  layout = trainable.shardings(parts.model, cfg.parameters, parts.mesh)
  if path.exists():
    trained = checkpoints.restore_part(path, {"trained": _like(parts, layout)[0]})["trained"]
    return Start(trained, frozen_start(parts, workdir))
  start = _initial_split(parts, layout)
  if cfg.warm_start.steps:
    start = start._replace(params=_train(parts, *start))
  if cfg.warm_start.steps or not cfg.pretrained:
    kept = {"trained": start.params}
    checkpoints.save_params(
        path, kept if cfg.pretrained or start.frozen is None else kept | {"frozen": start.frozen})
  return start


def frozen_start(parts: Parts, workdir: Path):
  """The frozen parameters of a run: those of `pretrained`, or the random ones in its folder; None
  where there are none.

  Raises:
    FileNotFoundError: the folder does not hold them.
  """
  cfg, path = parts.cfg, Path(workdir) / "warm_start"
  if cfg.parameters.train == "all":
    return None
  if cfg.pretrained:
    return trainable.frozen_of(initial(parts), cfg.parameters)
  if not path.exists():
    raise FileNotFoundError(
        f"{path}: no such folder, so the frozen parameters are unknown. Fix: a run's --workdir.")
  layout = trainable.shardings(parts.model, cfg.parameters, parts.mesh)
  return checkpoints.restore_part(path, {"frozen": _like(parts, layout)[1]})["frozen"]


def _like(parts: Parts, layout):
  shapes = trainable.shapes_of(parts.model, parts.cfg.parameters)
  return tuple(checkpoints.abstract(x, s) for x, s in zip(shapes, layout, strict=True))


def initial(parts: Parts):
  """All parameters before any update: `pretrained`'s, or random ones.

  Those of a checkpoint keep its dtype where some stay frozen; where all are trained they become
  f32.
  """
  cfg = parts.cfg
  if not cfg.pretrained:
    layout = parallel.param_shardings(parts.model, parts.mesh)
    return jax.jit(parts.model.init, out_shardings=layout)(jax.random.key(cfg.seed))
  dtype = "float32" if cfg.parameters.train == "all" else None
  model = parts.model.config
  _, params, _ = hf.load_pretrained(cfg.pretrained, mesh=parts.mesh, dtype=dtype,
                                    value_head=model.value_head, scan_layers=model.scan_layers,
                                    remat=model.remat, compute_dtype=model.compute_dtype)
  return params


def _initial_split(parts: Parts, layout) -> Start:
  """`trainable.split` of `initial`: frozen leaves are the same arrays, trained ones are laid out
  for the mesh.
  """
  cfg = parts.cfg
  params = initial(parts)
  if cfg.parameters.train == "all":
    return Start(params, None)
  # Adapters have a key of their own, so that they do not repeat the random numbers of parameters.
  key = jax.random.fold_in(jax.random.key(cfg.seed), ADAPTER_KEY)
  divide = jax.jit(lambda p, k: trainable.split(p, cfg.parameters, k)[0], out_shardings=layout[0])
  return Start(divide(params, key), trainable.frozen_of(params, cfg.parameters))


def _train(parts: Parts, trained, frozen):
  cfg = parts.cfg.warm_start
  tx = make_optimizer(parts.cfg.optimizer, warm_start_schedule(cfg))
  layout = state_shardings(parts.model, tx, parts.mesh, parts.cfg.parameters).replace(frozen=None)
  state = jax.jit(lambda p: init_state(p, tx), out_shardings=layout)(trained).replace(frozen=frozen)
  step = make_train_step(
      sft_loss, parts.model, tx,
      StepConfig(micro_batches=cfg.micro_batches, parameters=parts.cfg.parameters), parts.mesh)
  task = make_task(parts.cfg.task, parts.cfg.seed + SEED_OFFSET, cfg.batch_size,
                   tokenizer=parts.tokenizer if parts.cfg.pretrained else None,
                   limits=parts.cfg.rollout)
  weigh = jax.jit(weighed, out_shardings=parallel.rows(parts.mesh))
  bar = progress(range(cfg.steps), "warm start")
  norms = []
  for index in bar:
    state, metrics = step(state,
                          weigh(parallel.to_global(demonstrations(parts, task, index), parts.mesh)))
    norms.append(metrics["optimizer/grad_norm"].total)
    if index % 50 == 49:
      loss = metrics["loss/sft"]
      bar.set_postfix(loss=f"{float(loss.total) / float(loss.count):.3f}", refresh=False)
  bad = np.flatnonzero(~np.isfinite(parallel.gather_host(norms)))
  if len(bad):
    raise NonFiniteError(
        f"warm start, step {bad[0] + 1}: the gradient is not finite. Nothing was saved. "
        "Fix: a smaller warm_start.learning_rate; a new --workdir.")
  return state.params


def progress(steps, description: str, **options) -> tqdm:
  """A progress bar: live on a terminal, a line every ten seconds in a log."""
  return tqdm(steps, desc=description, mininterval=0.5 if sys.stderr.isatty() else 10.0, **options)


def demonstrations(parts: Parts, task, index: int) -> SupervisedBatch:
  """This process's rows prompt + worked completion; `loss_weights` are 1 on tokens of the
  completion.
  """
  width = parts.cfg.row_length
  problems = task.batch(index)
  tokens = np.full((len(problems), width), task.tokenizer.pad_token_id, np.int32)
  mask = np.zeros((len(problems), width), bool)
  for row, problem in enumerate(problems):
    prompt, completion = task.render(problem), task.demonstration(problem)
    end = len(prompt) + len(completion)
    if end > width:
      raise ValueError(
          f"the demonstration of {problem.prompt!r} makes a row of {end} tokens, the limit is "
          f"{width} "
          "(rollout.max_prompt_tokens + rollout.max_new_tokens)")
    tokens[row, :end] = prompt + completion
    mask[row, len(prompt):end] = task.demonstration_mask(problem)
  length = mask.shape[1] - np.argmax(mask[:, ::-1], 1)
  return SupervisedBatch(tokens, length.astype(np.int32), mask.astype(np.float32))


def weighed(batch: SupervisedBatch) -> SupervisedBatch:
  """Equal weights for all counted tokens of the batch, over all processes."""
  return batch.replace(
      loss_weights=loss_weights(batch.loss_weights > 0, None, None, AggregationConfig("token")))
