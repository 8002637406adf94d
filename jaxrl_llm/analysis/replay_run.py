"""Replay for a run's folder: which rollouts meet which parameters, and the files that come of it.
"""

import dataclasses
from pathlib import Path

import jax

from jaxrl_llm.analysis import frozen as frozen_lib
from jaxrl_llm.analysis import replay as replay_lib
from jaxrl_llm.analysis import replay_report
from jaxrl_llm.reporting.reader import RunError, read_run
from jaxrl_llm.reporting.writers import write_atomically
from jaxrl_llm.runs import checkpoints, saved, setup
from jaxrl_llm.training.score import Scores


def run(workdir: str | Path, iteration: int | None = None, checkpoint: int | None = None) -> str:
  """Replay one iteration's rollouts under a checkpoint's policy; writes replay.md and replay.html,
  returns the text.

  Args:
    workdir: of a run with a checkpoint.
    iteration: whose rollouts; None: those right after the checkpoint before the chosen one.
    checkpoint: whose parameters; None: the newest.

  Raises:
    RunError: the folder, the rollouts or the checkpoint cannot be read, or the policy is older than
    the rollouts.
  """
  workdir = Path(workdir)
  finished = read_run(workdir)
  parts = saved.parts_of(workdir, jax.devices()[:1])
  parts.close()  # nothing is drawn
  cfg = parts.cfg
  at = saved.choose(workdir, "latest" if checkpoint is None else checkpoint)
  if iteration is None:
    before = [i for i in checkpoints.iterations(workdir) if i < at]
    iteration = (before[-1] if before else 0) + 1
  rows = frozen_lib.load(finished, iteration, cfg, parts.tokenizer.pad_token_id)
  if at < iteration:
    raise RunError(
        f"--checkpoint={at} is older than the rollouts of --iteration={iteration}: a policy that "
        "had not "
        f"yet sampled them. Fix: --iteration={at} or less.")
  _, params = saved.restore_trained(parts, workdir, at)
  wanted = setup.scored_stats(cfg) - {"in_support"}  # `replay` finds the vocabulary itself
  stats = parts.score(params, rows.rollout, parts.scoring) if wanted else None
  scores = Scores() if stats is None else Scores(sum_pi_squared=stats.sum_pi_squared,
                                                 values=stats.values)
  result = replay_lib.replay(
      rows, params, scores, model=parts.model, cfg=_without_reward_kl(cfg),
      micro_batches=cfg.updates.optimizer_batches * cfg.updates.micro_batches,
      stop_ids=parts.task.stop_ids)
  title = f"Replay of {workdir.name}"
  subtitle = (
      f"rollouts of iteration {iteration} (policy step {int(rows.rollout.policy_step[0])}), policy "
      "of "
      f"iteration {at}; advantage {cfg.advantage.name}, aggregation {cfg.aggregation.name}; "
      f"{int(rows.rollout.mask.sum())} policy tokens in {len(rows.keep)} rows")
  text = replay_report.text(result, f"{title}: {subtitle}.")
  write_atomically(workdir / "replay.md", text)
  write_atomically(workdir / "replay.html", replay_report.page(result, title, subtitle))
  return text


def _without_reward_kl(cfg):
  """The reference's log-probs are not saved: a KL term in the reward is left out."""
  return dataclasses.replace(cfg, kl=dataclasses.replace(cfg.kl, coef=0.0))
