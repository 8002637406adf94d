"""The loop: sample, verify, score, weigh, update; evaluate and checkpoint; report."""

import json
import logging
import math
import time
from pathlib import Path

import jax
from tqdm import tqdm

from jaxrl_llm import parallel
from jaxrl_llm.config import Config
from jaxrl_llm.reporting import html, plots, reader, summary, tables, writers
from jaxrl_llm.training import collect, evaluate, setup, workdir
from jaxrl_llm.training.checkpoints import Checkpoints, TornCheckpointsError, abstract
from jaxrl_llm.training.train_step import NonFiniteError, init_state, state_shardings
from jaxrl_llm.training.warm_start import progress, warm_start

RUN_ERRORS = (NonFiniteError, TornCheckpointsError, reader.RunError)  # what ends a run with a message, not a traceback
SAMPLES = 12  # held-out completions shown in the report
logger = logging.getLogger(__name__)


def run(cfg: Config, directory: str | Path) -> dict[str, float]:
  """Train as `cfg` says, in `directory`; started again there, go on where the last checkpoint was.

  Returns:
    The last evaluation's metrics.

  Raises:
    ConfigError: before anything compiles.
    NonFiniteError: naming iteration and optimizer step.
  """
  cfg = setup.resolve(cfg)
  workdir.check(directory, cfg)
  parts = setup.build(cfg)
  directory = workdir.claim(directory, cfg)
  workdir.write_environment(directory)
  parts.tokenizer.save_pretrained(directory / "tokenizer")
  start_params = warm_start(parts, directory)
  checkpoints = Checkpoints(directory, cfg.checkpoint)
  writer = writers.MetricsWriter(directory)
  try:
    state = _train(parts, start_params, checkpoints, writer, directory)
  finally:
    checkpoints.close()
    writer.close()
  return _report(parts, start_params, state.params, directory)


def _train(parts: setup.Parts, start_params, checkpoints: Checkpoints, writer, directory: Path):
  """All iterations that are left; returns the final state."""
  cfg = parts.cfg
  state, done = _restore_or_start(parts, start_params, checkpoints, writer)
  bar = progress(range(done + 1, cfg.iterations + 1), cfg.estimator.name, initial=done, total=cfg.iterations)
  accuracy = "-"
  pending, clock = None, time.perf_counter()
  for iteration in bar:
    state, steps, values, rows = _iterate(parts, state, start_params, iteration)
    # The devices are busy with this iteration's updates while the host writes the one before.
    if pending is not None:
      _write(parts, writer, checkpoints, *pending)
    writers.write_rollouts(directory, iteration, rows)
    if iteration % cfg.evaluation.every == 0 or iteration == cfg.iterations:
      values |= evaluate.evaluate(parts, state.params).metrics
      accuracy = f"{values['eval/accuracy']:.3f}"
    values["time/iteration"], clock = time.perf_counter() - clock, time.perf_counter()
    pending = (iteration, steps, values)
    bar.set_postfix_str(f"reward {values['reward/mean']:.3f}, accuracy {accuracy}", refresh=False)
    if iteration % cfg.checkpoint.every == 0 or iteration == cfg.iterations:
      _write(parts, writer, checkpoints, *pending)
      pending = None
      checkpoints.save(iteration, state)
  return state


def _restore_or_start(parts: setup.Parts, start_params, checkpoints: Checkpoints, writer):
  """(state, finished iterations): the newest readable checkpoint, or the warm start with its evaluation."""
  shardings = state_shardings(parts.model, parts.tx, parts.mesh)
  init = jax.jit(lambda p: init_state(jax.tree.map(jax.numpy.copy, p), parts.tx), out_shardings=shardings)
  found = checkpoints.restore(abstract(jax.eval_shape(init, start_params), shardings))
  if found is not None:
    iteration, state = found
    writer.cut_back(iteration)
    logger.info("resumed after iteration %d", iteration)
    return state, iteration
  writer.cut_back(-1)
  metrics = evaluate.evaluate(parts, start_params).metrics
  writer.write(0, metrics)
  tqdm.write(f"after the warm start: held-out accuracy {metrics['eval/accuracy']:.3f}")
  state = init(start_params)
  checkpoints.save(0, state)
  return state, 0


def _iterate(parts: setup.Parts, state, ref_params, iteration: int):
  """One rollout batch and its updates: (state, metrics of each step on the device, host values, rollout rows)."""
  cfg = parts.cfg
  begin = time.perf_counter()
  problems = parts.task.batch(iteration)
  prompts = collect.prompt_batch(parts, problems, cfg.rollout.group_size, iteration * cfg.rows)
  at = collect.sampling(cfg.rollout.temperature)
  rollout = parts.sample(state.params, prompts, collect.iteration_key(cfg.seed, iteration), at)
  rollout = rollout.replace(policy_step=rollout.policy_step + state.step)
  anchor, reference = _score(parts, state.params, ref_params, rollout, at)
  host = parallel.gather_host(rollout)
  sampled = time.perf_counter()
  verdicts = collect.verify(parts, problems, host)
  values = collect.host_metrics(verdicts, host, cfg.rollout.group_size)
  if cfg.task.shuffle_rewards:
    verdicts = collect.shuffled(verdicts, cfg.seed, iteration)
  rewards, keep = parallel.to_global((verdicts.rewards, verdicts.keep), parts.mesh)
  batches, correction = parts.batches(rollout, rewards, keep, anchor, reference)
  rows = collect.rollout_rows(problems, verdicts, host, None if anchor is None else parallel.gather_host(anchor))
  steps = []
  for batch in batches:
    state, metrics = parts.step(state, batch)
    steps.append(metrics)
  values |= {"time/rollout": sampled - begin, "step": iteration * cfg.updates.optimizer_batches}
  return state, (steps, correction), values, rows


def _score(parts: setup.Parts, params, ref_params, rollout, at):
  """(anchor log-probs, reference log-probs), each None where nothing reads it."""
  cfg = parts.cfg
  if cfg.updates.anchor == "behavior":
    anchor = rollout.behavior_log_probs
  elif cfg.updates.optimizer_batches == 1 and cfg.correction.level == "none":
    anchor = None  # the current policy is the anchor: its own detached log-probs serve, without a pass
  else:
    anchor = parts.score(params, rollout, at).log_probs
  return anchor, parts.score(ref_params, rollout, at).log_probs if cfg.kl.coef else None


def _write(parts: setup.Parts, writer, checkpoints: Checkpoints, iteration: int, device, values: dict) -> None:
  """Fetch an iteration's metrics and write its line; stop the run where the loss or gradient is not finite."""
  steps, correction = device
  each = parallel.gather_host([(m["loss/total"].total, m["optimizer/grad_norm"].total) for m in steps])
  merged = summary.summarize(parallel.gather_host({**parts.merge(steps), **correction}))
  writer.write(iteration, {**values, **merged})
  for k, (loss, norm) in enumerate(each):
    if not (math.isfinite(loss) and math.isfinite(norm)):
      step = values["step"] - len(steps) + k + 1
      raise NonFiniteError(f"iteration {iteration}, optimizer step {step}: loss = {float(loss)}, gradient norm = "
                           f"{float(norm)}. The last good checkpoint is that of iteration {checkpoints.latest()}. Fix: "
                           "a smaller optimizer.learning_rate, or a bounded ratio; a new --workdir.")


def _report(parts: setup.Parts, start_params, params, directory: Path) -> dict[str, float]:
  """Samples before and after, plot, report.html and the summary on the screen."""
  before, after = evaluate.evaluate(parts, start_params), evaluate.evaluate(parts, params)
  shown = {"before": evaluate.samples(parts, params, start_params, before, SAMPLES),
           "after": evaluate.samples(parts, params, start_params, after, SAMPLES)}
  writers.write_atomically(directory / "samples.json", json.dumps(shown))
  finished = reader.read_run(directory)
  plots.plot_run(finished, directory / "curves.png")
  report = html.write_report(directory)
  tqdm.write(tables.summary_table(finished))
  tqdm.write(f"plot: {directory / 'curves.png'}\nreport: {report}")
  return after.metrics
