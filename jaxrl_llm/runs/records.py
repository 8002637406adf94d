"""What a run writes about a rollout batch: metrics of the host, and a record of each row."""

import numpy as np

from jaxrl_llm.runs.verdicts import Verdicts
from jaxrl_llm.types import Problem, Rollout


def host_metrics(verdicts: Verdicts, rollout: Rollout, group_size: int) -> dict[str, float]:
  """Statistics of a rollout batch that need no parameters; shares are of kept rows, lengths in
  tokens.

  With turns, too: policy turns per row, the share of void rows (which are unscored as well), tokens
  of the tools.
  """
  keep, correct = verdicts.keep, verdicts.correct
  new = (rollout.length - rollout.prompt_length).astype(np.float64)
  groups = correct.reshape(-1, group_size)
  share = lambda x, where: float(np.mean(x[where])) if np.any(where) else float("nan")
  turns = {} if rollout.turn_id is None else {
      "rollout/turns": float(np.mean(rollout.turn_id.max(1))),
      "rollout/void": float(np.mean(rollout.void)),
      "tool/tokens": float(np.sum(new) - np.sum(rollout.mask))
  }
  return turns | {
      "reward/mean": share(verdicts.rewards, keep), "reward/correct": share(correct, keep),
      "reward/unscored": float(np.mean(~keep)), "reward/solve_all": float(np.mean(groups.all(1))),
      "reward/solve_none": float(np.mean(~groups.any(1))), "rollout/length": float(np.mean(new)),
      "rollout/truncated": float(np.mean(rollout.truncated)), "rollout/tokens": float(np.sum(new)),
      # Share of the row slots of a decode step that belong to rows which had ended already.
      "rollout/wasted_steps": float(1 - np.sum(new) / (len(new) * max(1.0, np.max(new)))),
  }


def rollout_rows(problems: list[Problem], verdicts: Verdicts, rollout: Rollout,
                 anchor: np.ndarray | None, rewards: np.ndarray, keep: np.ndarray) -> list[dict]:
  """JSON-able rows of a batch; per-token lists cover the row's `length` tokens.

  `reward` is the verifier's; `trained_reward` and `keep` are what the update read, after shaping.
  Rows with turns also have `turn_id` per token, 0 outside of the policy's turns, and `void`.
  """
  group = len(verdicts.texts) // len(problems)
  out = []
  for row, text in enumerate(verdicts.texts):
    problem, reward, n = problems[row // group], verdicts.given[row], int(rollout.length[row])
    out.append({
        "row_id": int(rollout.row_id[row]),
        "group_id": int(rollout.group_id[row]),
        "policy_step": int(rollout.policy_step[row]),
        "prompt": problem.prompt,
        "completion": text,
        "answer": problem.answer,
        "reward": float(verdicts.rewards[row]),
        "correct": bool(verdicts.correct[row]),
        "trained_reward": float(rewards[row]),
        "keep": bool(keep[row]),
        "unscored_reason": reward.unscored_reason,
        "truncated": bool(rollout.truncated[row]),
        "stop_reason": int(rollout.stop_reason[row]),
        "prompt_length": int(rollout.prompt_length[row]),
        "tokens": rollout.tokens[row, :n].tolist(),
        "mask": rollout.mask[row, :n].astype(int).tolist(),
        "behavior_log_probs": rollout.behavior_log_probs[row, :n].tolist(),
        "anchor_log_probs": None if anchor is None else anchor[row, :n].tolist()
    })
    if rollout.turn_id is not None:
      out[-1] |= {"turn_id": rollout.turn_id[row, :n].tolist(), "void": bool(rollout.void[row])}
  return out
