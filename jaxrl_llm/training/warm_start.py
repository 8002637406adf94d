"""Supervised training on demonstrations, before the first rollout; the result is cached in the workdir."""

import sys
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from jaxrl_llm import parallel
from jaxrl_llm.config import AggregationConfig, StepConfig
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.objective.loss import sft_loss
from jaxrl_llm.training import checkpoints
from jaxrl_llm.training.setup import Parts, make_task
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


def warm_start(parts: Parts, workdir: Path):
  """Parameters after `warm_start.steps` updates, from `workdir/warm_start` where a finished one lies there."""
  path = Path(workdir) / "warm_start"
  shardings = parallel.param_shardings(parts.model, parts.mesh)
  shapes = jax.eval_shape(parts.model.init, jax.random.key(0))
  if path.exists():
    return checkpoints.restore_params(path, checkpoints.abstract(shapes, shardings))
  params = jax.jit(parts.model.init, out_shardings=shardings)(jax.random.key(parts.cfg.seed))
  if parts.cfg.warm_start.steps:
    params = _train(parts, params)
  checkpoints.save_params(path, params)
  return params


def _train(parts: Parts, params):
  cfg = parts.cfg.warm_start
  tx = make_optimizer(parts.cfg.optimizer, warm_start_schedule(cfg))
  state = jax.jit(lambda p: init_state(p, tx), out_shardings=state_shardings(parts.model, tx, parts.mesh))(params)
  step = make_train_step(sft_loss, parts.model, tx, StepConfig(micro_batches=cfg.micro_batches), parts.mesh)
  task = make_task(parts.cfg.task, parts.cfg.seed + SEED_OFFSET, cfg.batch_size)
  bar = progress(range(cfg.steps), "warm start")
  norms = []
  for index in bar:
    state, metrics = step(state, parallel.to_global(demonstrations(parts, task, index), parts.mesh))
    norms.append(metrics["optimizer/grad_norm"].total)
    if index % 50 == 49:
      loss = metrics["loss/sft"]
      bar.set_postfix(loss=f"{float(loss.total) / float(loss.count):.3f}", refresh=False)
  bad = np.flatnonzero(~np.isfinite(parallel.gather_host(norms)))
  if len(bad):
    raise NonFiniteError(f"warm start, step {bad[0] + 1}: the gradient is not finite. Nothing was saved. "
                         "Fix: a smaller warm_start.learning_rate; a new --workdir.")
  return state.params


def progress(steps, description: str, **options) -> tqdm:
  """A progress bar: live on a terminal, a line every ten seconds in a log."""
  return tqdm(steps, desc=description, mininterval=0.5 if sys.stderr.isatty() else 10.0, **options)


def demonstrations(parts: Parts, task, index: int) -> SupervisedBatch:
  """Rows prompt + worked completion, weighted by token over the batch."""
  width = parts.cfg.row_length
  problems = task.batch(index)
  tokens = np.full((len(problems), width), task.tokenizer.pad_token_id, np.int32)
  mask = np.zeros((len(problems), width), bool)
  for row, problem in enumerate(problems):
    prompt, completion = task.render(problem), task.demonstration(problem)
    end = len(prompt) + len(completion)
    if end > width:
      raise ValueError(f"the demonstration of {problem.prompt!r} makes a row of {end} tokens, the limit is {width} "
                       "(rollout.max_prompt_tokens + rollout.max_new_tokens)")
    tokens[row, :end] = prompt + completion
    mask[row, len(prompt):end] = True
  length = mask.shape[1] - np.argmax(mask[:, ::-1], 1)
  weights = loss_weights(mask, None, None, AggregationConfig("token"))
  return SupervisedBatch(tokens, length.astype(np.int32), np.asarray(weights))
