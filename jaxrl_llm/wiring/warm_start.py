"""Supervised training on demonstrations before the first rollout, cached in the run's folder."""

import functools
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from jaxrl_llm import parallel
from jaxrl_llm.config import AggregationConfig, Config, LossConfig, StepConfig
from jaxrl_llm.models import hf, trainable
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.objective.loss import sft_loss
from jaxrl_llm.parallel import processes
from jaxrl_llm.store import checkpoints
from jaxrl_llm.store.folders import path_of
from jaxrl_llm.tasks.demonstrations import demonstrating
from jaxrl_llm.training.optimizers import make_optimizer, warm_start_schedule
from jaxrl_llm.training.train_step import (
  NonFiniteError,
  init_state,
  make_train_step,
  state_shardings,
)
from jaxrl_llm.types import Params, SupervisedBatch, Task
from jaxrl_llm.wiring import evaluation_sets
from jaxrl_llm.wiring.evaluation_sets import EvaluationSet
from jaxrl_llm.wiring.learner import Learner, Start

SEED_OFFSET = 1_000_003  # demonstrations come from another stream of problems than rollouts
ADAPTER_KEY = 0x10A
TORN = ("a copy of it, or remove it: the same start is then made again, and the run resumes from "
        "its checkpoints")
logger = logging.getLogger(__name__)


def warm_start(cfg: Config, learner: Learner, tokenizer: PreTrainedTokenizerBase,
               workdir: Path, sets: Sequence[EvaluationSet] = ()) -> Start:
  """Returns the start of a run: `warm_start.steps` updates of the trained parameters.

  It is kept in `workdir/warm_start` and read from there if the run is started again. With
  `pretrained`, only the trained leaves are saved, and nothing if warm_start.steps = 0.

  Args:
    tokenizer: of the checkpoint in `pretrained`; unread without one.
    sets: what they ask is not imitated.
  """
  path = path_of(workdir) / "warm_start"
  if not processes.from_main("warm start", lambda: checkpoints.complete(path)):
    start = _initial_split(cfg.pretrained, cfg.seed, learner)
    if cfg.warm_start.steps:
      start = start._replace(params=_train(cfg, learner, tokenizer, start, sets))
    if cfg.warm_start.steps or not cfg.pretrained:
      tree = {"trained": start.params}
      if start.frozen is not None and not cfg.pretrained:
        tree["frozen"] = start.frozen
      checkpoints.save_params(path, tree)
    return start
  like = {"trained": _abstract(learner).params}
  params = checkpoints.restore_part(path, like, TORN)["trained"]
  return Start(params, frozen_start(cfg.pretrained, learner, workdir))


def frozen_start(checkpoint: str, learner: Learner, workdir: Path) -> Params | None:
  """Returns the frozen parameters of a run: the checkpoint's, or the random ones in its folder;
  None if all are trained.

  Raises:
    FileNotFoundError: the folder does not hold them.
  """
  path = path_of(workdir) / "warm_start"
  parameters = learner.cfg.parameters
  if parameters.train == "all":
    return None
  if checkpoint:
    return trainable.frozen_of(_checkpoint_params(checkpoint, learner), parameters)
  if not checkpoints.complete(path):
    raise FileNotFoundError(
        f"{path}: no such folder, so the frozen parameters are unknown. Fix: a run's --workdir.")
  like = {"frozen": _abstract(learner).frozen}
  return checkpoints.restore_part(path, like, TORN)["frozen"]


def _abstract(learner: Learner) -> Start:
  """Shapes, dtypes and shardings of a start."""
  shapes = trainable.shapes_of(learner.model, learner.cfg.parameters)
  layout = trainable.shardings(learner.model, learner.cfg.parameters, learner.mesh)
  return Start(*(checkpoints.abstract(x, s) for x, s in zip(shapes, layout, strict=True)))


def initial(checkpoint: str, seed: int, learner: Learner) -> Params:
  """Returns all parameters before any update: the checkpoint's, or random ones."""
  if checkpoint:
    return _checkpoint_params(checkpoint, learner)
  layout = parallel.param_shardings(learner.model, learner.mesh)
  return jax.jit(learner.model.init, out_shardings=layout)(jax.random.key(seed))


def _checkpoint_params(checkpoint: str, learner: Learner) -> Params:
  """Returns a checkpoint's parameters: in f32 if all are trained; otherwise in its dtype."""
  dtype = "float32" if learner.cfg.parameters.train == "all" else None
  model = learner.model.config
  _, params, report = hf.load_pretrained(
      checkpoint, mesh=learner.mesh, dtype=dtype, value_head=model.value_head, mtp=model.mtp,
      scan_layers=model.scan_layers, remat=model.remat, attention=model.attention,
      compute_dtype=model.compute_dtype)
  for head in sorted({path.split("/")[0] for path in report.initialised}):
    logger.warning("pretrained = %r has no %s, which begins untrained", checkpoint, head)
  return params


def _initial_split(checkpoint: str, seed: int, learner: Learner) -> Start:
  """Returns `trainable.split` of `initial`: frozen leaves are the same arrays, trained ones are
  laid out for the mesh.
  """
  params, parameters = initial(checkpoint, seed, learner), learner.cfg.parameters
  if parameters.train == "all":
    return Start(params, None)
  layout, _ = trainable.shardings(learner.model, parameters, learner.mesh)

  def trained_leaves(params, key):
    return trainable.split(params, parameters, key)[0]

  # Adapters have a separate key, so that they do not repeat the random numbers of parameters.
  key = jax.random.fold_in(jax.random.key(seed), ADAPTER_KEY)
  trained = jax.jit(trained_leaves, out_shardings=layout)(params, key)
  return Start(trained, trainable.frozen_of(params, parameters))


def _train(cfg: Config, learner: Learner, tokenizer: PreTrainedTokenizerBase,
           start: Start, sets: Sequence[EvaluationSet]) -> Params:
  """Returns the trained leaves after `warm_start.steps` updates; those of the start are donated.

  Raises:
    NonFiniteError: a gradient is not finite; nothing is saved.
  """
  warm, model, mesh = cfg.warm_start, learner.model, learner.mesh
  tx = make_optimizer(cfg.optimizer, warm_start_schedule(warm))
  layout = state_shardings(model, tx, mesh, cfg.parameters).replace(frozen=None)
  init = jax.jit(functools.partial(init_state, tx=tx), donate_argnums=0, out_shardings=layout)
  state = init(start.params).replace(frozen=start.frozen)
  loss = LossConfig(mtp_coef=warm.mtp_coef if cfg.has_mtp else None)
  step = make_train_step(sft_loss, model, tx,
                         StepConfig(loss, warm.micro_batches, cfg.parameters), mesh)
  task = demonstrating(warm, cfg.task, cfg.rollout, cfg.seed + SEED_OFFSET,
                       tokenizer if cfg.pretrained else None)
  evaluation_sets.leave_out(task, sets)
  weigh = jax.jit(weighed, out_shardings=parallel.rows(mesh))
  bar, norms = progress(range(warm.steps), "warm start"), []
  for index in bar:
    batch = parallel.to_global(demonstrations(task, index, cfg.rollout.row_length), mesh)
    jax.block_until_ready(norms[-1:])  # devices on few threads end if steps queue up on them
    state, metrics = step(state, weigh(batch))
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
  """Returns a progress bar: live on a terminal, a line each ten seconds in a log; in process 0."""
  return tqdm(steps, desc=description, mininterval=0.5 if sys.stderr.isatty() else 10.0,
              disable=not processes.is_main(), **options)


def demonstrations(task: Task, index: int, width: int) -> SupervisedBatch:
  """This process's rows of a task batch: prompt and worked completion, `width` columns.

  `loss_weights` are 1 on tokens of the completion.
  """
  problems = task.batch(index)
  problems = problems[processes.share(len(problems))]
  tokens = np.full((len(problems), width), task.tokenizer.pad_token_id, np.int32)
  mask = np.zeros((len(problems), width), bool)
  for row, problem in enumerate(problems):
    prompt, completion = task.render(problem), task.demonstration(problem)
    end = len(prompt) + len(completion)
    if end > width:
      raise ValueError(
          f"the demonstration of {problem.prompt!r} makes a row of {end} tokens, the limit is "
          f"{width} (rollout.max_prompt_tokens + rollout.max_new_tokens)")
    tokens[row, :end] = prompt + completion
    mask[row, len(prompt):end] = task.demonstration_mask(problem)
  length = mask.shape[1] - np.argmax(mask[:, ::-1], 1)
  return SupervisedBatch(tokens, length.astype(np.int32), mask.astype(np.float32))


def weighed(batch: SupervisedBatch) -> SupervisedBatch:
  """Returns equal weights for all counted tokens of the batch, over all processes."""
  return batch.replace(
      loss_weights=loss_weights(batch.loss_weights > 0, None, None, AggregationConfig("token")))
