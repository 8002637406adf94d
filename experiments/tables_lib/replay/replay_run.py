"""Replay for a run's folder: chooses rollouts and parameters, and writes the report."""

import dataclasses
from pathlib import Path

import jax

from experiments.commands import saved
from experiments.report.run_folder import RunFolder, read_run
from experiments.tables_lib.replay import frozen as frozen_lib
from experiments.tables_lib.replay import replay as replay_lib
from experiments.tables_lib.replay import replay_report
from jaxrl_llm.config import UpdateConfig
from jaxrl_llm.objective import advantages
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.reporting.writers import write_atomically
from jaxrl_llm.store import checkpoints
from jaxrl_llm.store.folders import path_of
from jaxrl_llm.training.columns import BASE, CURRENT, REFERENCE
from jaxrl_llm.training.score import Scores
from jaxrl_llm.types import Params, Rollout
from jaxrl_llm.wiring.learner import Learner, Start


def run(workdir: str | Path, iteration: int | None = None, checkpoint: int | None = None,
        plugins: str = "") -> str:
  """Replays one iteration's rollouts under a checkpoint's policy; writes replay.md and replay.html,
  and returns the text.

  Args:
    workdir: folder of a run with a checkpoint.
    iteration: of the rollouts; None: the first one that was kept after the checkpoint before the
      chosen one.
    checkpoint: iteration of the parameters; None: the newest.
    plugins: as `saved.read_config`.

  Raises:
    RunError: the folder, the rollouts or the checkpoint cannot be read, the policy is older than
      the rollouts, or the advantage reads what no run saves.
  """
  workdir = path_of(workdir)
  finished = read_run(workdir)
  cfg, task, learner = saved.build_learner(workdir, jax.devices()[:1], plugins)
  policy_iteration = saved.choose(workdir, "latest" if checkpoint is None else checkpoint)
  if iteration is None:
    iteration = _first_with_rollouts(finished, policy_iteration)
  rows = frozen_lib.load(finished, iteration, cfg.rollout, task.tokenizer.pad_token_id)
  if policy_iteration < iteration:
    raise RunError(
        f"--checkpoint={policy_iteration} is older than the rollouts of --iteration={iteration}: a "
        f"policy that had not yet sampled them. Fix: --iteration={policy_iteration} or less.")
  if "ref_log_probs" in advantages.needs(cfg.advantage):
    raise RunError(f"advantage.name = {cfg.advantage.name!r} of {workdir} reads the reference's "
                   "log-probs, which a run does not save. Fix: another run.")
  _, start = saved.restore_start(cfg, learner, workdir, policy_iteration)
  params = learner.merged(start)
  # The reference's log-probs are not saved, so a KL term in the reward is left out.
  without_kl = dataclasses.replace(cfg.kl, coef=0.0)
  step = dataclasses.replace(
      learner.cfg, loss=dataclasses.replace(learner.cfg.loss, kl=without_kl),
      micro_batches=_micro_batches(len(rows.keep), cfg.rollout.rows, cfg.updates))
  replayed = replay_lib.replay(
      rows, params, _scores(learner, start, params, rows.rollout), model=learner.model,
      cfg=dataclasses.replace(cfg.batch, kl=without_kl), step=step)
  title = f"Replay of {workdir.name}"
  subtitle = (
      f"rollouts of iteration {iteration} (policy step {int(rows.rollout.policy_step.max())}), "
      f"policy of iteration {policy_iteration}; advantage {cfg.advantage.name}, aggregation "
      f"{cfg.aggregation.name}; {int(rows.rollout.mask.sum())} policy tokens in {len(rows.keep)} "
      f"rows")
  text = replay_report.text(replayed, f"{title}: {subtitle}.")
  write_atomically(workdir / "replay.md", text)
  write_atomically(workdir / "replay.html", replay_report.page(replayed, title, subtitle))
  return text


def _first_with_rollouts(run: RunFolder, policy_iteration: int) -> int:
  """Returns the first iteration with rollouts after the last checkpoint before `policy_iteration`.
  """
  before = [i for i in checkpoints.iterations(run.workdir) if i < policy_iteration]
  first = (before[-1] if before else 0) + 1
  return next((i for i in run.rollout_iterations() if first <= i <= policy_iteration), first)


def _micro_batches(rows: int, rows_of_run: int, updates: UpdateConfig) -> int:
  """Returns into how many equal parts the rows are cut, each at most as large as the run's; because
  of `rollouts.rows` there may be fewer rows than in the run.
  """
  size = max(1, rows_of_run // (updates.optimizer_batches * updates.micro_batches))
  return next(n for n in range(1, rows + 1) if rows % n == 0 and rows // n <= size)


def _scores(learner: Learner, start: Start, params: Params, rollout: Rollout) -> Scores:
  """Returns the statistics [B, L] that the run's advantage reads, under the current policy.

  `replay` makes its own anchor and vocabulary.
  """
  scoring = learner.scoring
  policies = {CURRENT: params, BASE: None if learner.base is None else learner.base(start)}
  columns = {name: column.run(*(policies[policy_name] for policy_name in column.entry.reads),
                              rollout, scoring.sampling)
             for name, column in scoring.columns.items() if REFERENCE not in column.entry.reads}
  scores = Scores(columns=columns or None)
  if not scoring.stats:
    return scores
  stats = scoring.score(params, rollout, scoring.sampling)
  return scores.replace(sum_pi_squared=stats.sum_pi_squared, values=stats.values,
                        entropy=stats.entropy)
