"""The records of a rollout batch: metrics of the host, and a record of each completion."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.parallel import processes
from jaxrl_llm.reporting.writers import DIGITS, plain
from jaxrl_llm.runs.rollout_batch import ScoredBatch
from jaxrl_llm.runs.run_state import RunState
from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.types import Problem, Rollout
from jaxrl_llm.wiring.loop import RolloutSource


class DeviceMetrics(NamedTuple):
  """Mergeable metrics, which the device may still be computing.

  Attributes:
    steps: of each update.
    batch: of correction, reward, advantage and mismatch.
    phases: of each step that an update transform took before, by its name.
  """

  steps: list[dict]
  batch: dict
  phases: dict[str, list[dict]]

  @property
  def updates(self) -> int:
    """Optimizer steps of the iteration."""
    return len(self.steps) + sum(map(len, self.phases.values()))


class Records:
  """Makes an iteration's records, and neither writes, evaluates nor saves: `RunRecords` does."""

  @contextlib.contextmanager
  def updating(self, run: RunState, iteration: int) -> Iterator[Callable[[jax.Array], None]]:
    """Context around the steps of an iteration that make the next state; yields a function that is
    called with an array of that state.
    """
    del run, iteration
    yield lambda array: None

  def write(self, iteration: int, scored: ScoredBatch, metrics: DeviceMetrics,
            values: dict[str, float]) -> list[dict[str, Any]]:
    """Returns a record of each completion; see `rollout_rows`."""
    del iteration, metrics, values
    anchor = scored.scores.anchor_log_probs
    anchor = None if anchor is None else parallel.local_rows(anchor)
    batch = scored.batch
    return rollout_rows(batch.problems, batch.verdicts, batch.host, anchor, scored.rewards,
                        scored.keep)

  def evaluate_and_save(self, iteration: int, run: RunState) -> None:
    """Evaluates and saves where the schedule says so."""


def batch_values(source: RolloutSource, scored: ScoredBatch, step: jax.Array) -> dict[str, float]:
  """Returns metrics of the completions of all processes, of their rewards after shaping, and the
  optimizer step before the updates.
  """
  batch, rewards, keep = scored.batch, scored.rewards, scored.keep
  before = int(step)
  if source.multi_process:
    rewards, keep = map(np.concatenate, zip(*processes.exchange("shaped", (rewards, keep)),
                                            strict=True))
  versions = {}
  if batch.unfinished is not None:
    from jaxrl_llm.runs.in_flight import versions_everywhere
    versions = versions_everywhere(batch.host, before)
  completion_metrics = host_metrics(batch.verdicts, batch.host, source.rollout.group_size,
                                    source.multi_process)
  return batch.metrics | versions | completion_metrics | {
      "step": before, "rollout/staleness": token_age(batch.host, before),
      "reward/shaped": float(np.mean(rewards[keep])) if keep.any() else float("nan"),
      "reward/kept": float(np.mean(keep)),
  }


def token_age(rollout: Rollout, step: int) -> float:
  """Returns the mean staleness of the tokens that the policy sampled, in optimizer steps before
  `step`; NaN without such a token.
  """
  policy_step = rollout.policy_step[rollout.mask]
  return step - float(np.mean(policy_step)) if policy_step.size else float("nan")


class RowFacts(NamedTuple):
  """Numbers of B rows, each [B].

  Attributes:
    new: tokens of the completion.
    sampled: tokens among them that the policy sampled.
    truncated: bool.
    turns: of the policy, 0 without turns.
    void: bool, False without turns.
  """

  new: np.ndarray
  sampled: np.ndarray
  truncated: np.ndarray
  turns: np.ndarray
  void: np.ndarray


def row_facts(rollout: Rollout) -> RowFacts:
  """Returns the facts of rows on the host."""
  new = np.asarray(rollout.length) - np.asarray(rollout.prompt_length)
  turns, void = np.zeros_like(new), np.zeros(new.shape, bool)
  if rollout.turn_id is not None:
    turns, void = rollout.turn_id.max(1), np.asarray(rollout.void)
  return RowFacts(new.astype(np.float64), rollout.mask.sum(1), rollout.truncated, turns, void)


def everywhere(verdicts: Verdicts, facts: RowFacts) -> tuple[Verdicts, RowFacts]:
  """Returns the rows of all processes, in their order; with several, without their texts."""
  if processes.count() == 1:
    return verdicts, facts
  slim = dataclasses.replace(verdicts, texts=[])
  parts = processes.exchange("rows", (slim, facts))
  return (Verdicts.join([part for part, _ in parts]),
          RowFacts(*map(np.concatenate, zip(*(rows for _, rows in parts), strict=True))))


def host_metrics(verdicts: Verdicts, rollout: Rollout, group_size: int,
                 multi_process: bool = False) -> dict[str, float]:
  """Returns statistics of a rollout batch that need no parameters. Lengths are in tokens.

  `reward/mean` and `reward/correct` are means over kept rows. Where the reward does not say what is
  correct, `reward/correct` and the shares of solved groups are left out. With turns there are also
  the policy turns per row, the share of void rows (unscored too) and the tokens of tools.

  Args:
    verdicts, rollout: of this process's rows, on the host.
    multi_process: whether there are other processes, whose rows count too.
  """
  rows = row_facts(rollout)
  if multi_process:
    verdicts, rows = everywhere(verdicts, rows)
  keep, correct, new = verdicts.keep, verdicts.correct, rows.new
  groups = correct.reshape(-1, group_size)
  some = {}
  if rollout.turn_id is not None:
    some = {
        "rollout/turns": float(np.mean(rows.turns)),
        "rollout/void": float(np.mean(rows.void)),
        "tool/tokens": float(np.sum(new) - np.sum(rows.sampled)),
    }
  if verdicts.graded:
    some |= {
        "reward/correct": float(np.mean(correct[keep])) if keep.any() else float("nan"),
        "reward/solve_all": float(np.mean(groups.all(1))),
        "reward/solve_none": float(np.mean(~groups.any(1))),
    }
  return some | component_means("reward", verdicts) | uncompared("reward", verdicts) | {
      "reward/mean": float(np.mean(verdicts.rewards[keep])) if keep.any() else float("nan"),
      "reward/unscored": float(np.mean(~keep)),
      "rollout/length": float(np.mean(new)),
      "rollout/truncated": float(np.mean(rows.truncated)),
      "rollout/tokens": float(np.sum(new)),
      # Share of a decode step's row slots that belong to rows which had ended already.
      "rollout/wasted_steps": float(1 - np.sum(new) / (len(new) * max(1.0, np.max(new)))),
  }


def uncompared(prefix: str, verdicts: Verdicts) -> dict[str, float]:
  """Returns the shares of completions that are wrong because checking them would take without end,
  as `prefix/costly`, or because the reward cannot read them, as `prefix/unreadable`. Empty if the
  verdicts do not say how they were found.
  """
  rungs = [reward.rung for reward in verdicts.given]
  if all(rung is None for rung in rungs):
    return {}
  return {f"{prefix}/{rung}": rungs.count(rung) / len(rungs) for rung in ("costly", "unreadable")}


def component_means(prefix: str, verdicts: Verdicts) -> dict[str, float]:
  """Returns the mean of each reward component over the kept rows that have it, as
  `prefix/component/name`.

  Empty if the task's own verdict is the only reward.
  """
  values_of: dict[str, list[float]] = {}
  for reward, keep in zip(verdicts.given, verdicts.keep, strict=True):
    for name, value in reward.components if keep else ():
      values_of.setdefault(f"{prefix}/component/{name}", []).append(value)
  return {name: float(np.mean(values)) for name, values in sorted(values_of.items())}


def rollout_rows(problems: list[Problem], verdicts: Verdicts, rollout: Rollout,
                 anchor: np.ndarray | None, rewards: np.ndarray, keep: np.ndarray) -> list[dict]:
  """Returns a record of each row: JSON-able facts, and per-token arrays of the row's `length`
  tokens.

  `policy_step` is the step of the last token that the policy sampled. `reward` is the verifier's;
  `trained_reward` and `keep` are what the update read, after shaping. If any row is of several
  policies, rows also have `policy_steps`, per token, 0 outside the mask. Rows with turns also have
  `void`, and `turn_id` per token, which is 0 outside the policy's turns. Rows of a verifier have
  the `rung` that decided (grading/comparisons.Verdict). Rows whose reward was added up have its
  `components` by name, before their weights.

  Args:
    problems: one per group.
    rollout: on the host.
    anchor: [B, L] log-probs of the anchor, or None.
    rewards, keep: [B], after shaping.
  """
  lists = {name: plain(getattr(rollout, name))
           for name in ("row_id", "group_id", "truncated", "stop_reason", "prompt_length",
                        "length")}
  lists["policy_step"] = plain(rollout.policy_step.max(1))
  columns = {"tokens": rollout.tokens, "mask": rollout.mask,
             "behavior_log_probs": rollout.behavior_log_probs, "anchor_log_probs": anchor}
  if _several_policies(rollout):
    columns["policy_steps"] = rollout.policy_step
  trained, keeps = plain(rewards, DIGITS), plain(keep)
  verified, correct = plain(verdicts.rewards, DIGITS), plain(verdicts.correct)
  if rollout.turn_id is not None:
    lists["void"] = plain(rollout.void)
    columns["turn_id"] = rollout.turn_id
  columns = {name: array if array is None else np.asarray(array) for name, array in columns.items()}
  group = len(verdicts.texts) // len(problems)
  out = []
  for row, text in enumerate(verdicts.texts):
    problem, reward, length = problems[row // group], verdicts.given[row], lists["length"][row]
    out.append({
        "row_id": lists["row_id"][row],
        "group_id": lists["group_id"][row],
        "policy_step": lists["policy_step"][row],
        "prompt": problem.prompt,
        "completion": text,
        "answer": problem.answer,
        "reward": verified[row],
        "correct": correct[row],
        "trained_reward": trained[row],
        "keep": keeps[row],
        "unscored_reason": reward.unscored_reason,
        "truncated": lists["truncated"][row],
        "stop_reason": lists["stop_reason"][row],
        "prompt_length": lists["prompt_length"][row],
        **{name: None if array is None else array[row, :length]
           for name, array in columns.items()},
    })
    if reward.rung is not None:
      out[-1]["rung"] = reward.rung
    if reward.components:
      names, values = zip(*reward.components, strict=True)
      out[-1]["components"] = dict(zip(names, plain(np.array(values), DIGITS), strict=True))
    if rollout.turn_id is not None:
      out[-1]["void"] = lists["void"][row]
  return out


def _several_policies(rollout: Rollout) -> bool:
  """Returns whether several policies sampled any of the rows."""
  last = rollout.policy_step.max(1, keepdims=True)
  return bool(np.any(rollout.mask & (rollout.policy_step != last)))
