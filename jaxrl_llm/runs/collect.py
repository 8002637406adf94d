"""Host side of a rollout batch: prompts in, verdicts out."""

import dataclasses

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.rollouts.environment import before_stop
from jaxrl_llm.runs.setup import Parts
from jaxrl_llm.types import (
  STOP_ENVIRONMENT,
  STOP_LENGTH,
  STOP_STRING,
  STOP_TOKEN,
  Problem,
  PromptBatch,
  Reward,
  Rollout,
  Sampling,
)


def prompt_batch(parts: Parts, problems: list[Problem], group_size: int,
                 first_row: int) -> PromptBatch:
  """Each problem on `group_size` contiguous rows; row ids count up from `first_row`, a multiple of
  `group_size`.

  Group ids follow from row ids, so that they are unique in the run: groups of several draws may be
  joined.
  """
  width = parts.cfg.rollout.max_prompt_tokens
  ids = [parts.task.render(problem) for problem in problems]
  tokens = np.full((len(ids), width), parts.tokenizer.pad_token_id, np.int32)
  for row, prompt in enumerate(ids):
    tokens[row, :len(prompt)] = prompt
  rows = len(problems) * group_size
  row_id = first_row + np.arange(rows, dtype=np.int32)
  batch = PromptBatch(np.repeat(tokens, group_size, 0),
                      np.repeat([len(i) for i in ids], group_size).astype(np.int32), row_id,
                      row_id // group_size)
  return parallel.to_global(batch, parts.mesh)


def sampling(temperature: float) -> Sampling:
  """Of an evaluation: the whole vocabulary, but for the stop tokens that `rollout.min_new_tokens`
  holds back.
  """
  return Sampling.of(temperature)


def completions(parts: Parts, rollout: Rollout) -> list[str]:
  """Text of each completion without its stop token; other special tokens stay visible to the
  verifier.

  A stop string is left out with what follows it in its last token; the row's tokens keep both. Of
  what tools wrote,
  only an output that ended its row is in the text: it holds the answer. Where the tool's protocol
    looks for an answer,
  the code of calls is left out, too: what a program would print is no answer before it has run.
  """
  stated = parts.cfg.rollout.max_turns > 0 and parts.environment.protocol.needs_answer
  texts = []
  for row in range(rollout.tokens.shape[0]):
    ours, length = rollout.mask[row].copy(), rollout.length[row]
    if rollout.stop_reason[row] == STOP_ENVIRONMENT:
      ours[np.flatnonzero(ours)[-1]:length] = True
    ids = rollout.tokens[row][ours]
    if stated:
      texts.append(
          _stated(parts, ids, rollout.turn_id[row][ours], rollout.stop_reason[row] == STOP_LENGTH))
    elif rollout.stop_reason[row] == STOP_STRING:
      # As StopStrings reads it: tidied spaces could take the string apart.
      text = parts.tokenizer.decode(ids, skip_special_tokens=False,
                                    clean_up_tokenization_spaces=False)
      texts.append(before_stop(text, parts.cfg.rollout.stop_strings))
    else:
      texts.append(
          parts.tokenizer.decode(ids[:-1] if rollout.stop_reason[row] == STOP_TOKEN else ids))
  return texts


def _stated(parts: Parts, ids: np.ndarray, turn_id: np.ndarray, cut: bool) -> str:
  """What stands in each turn beside its call, line by line, and the output behind the last, whose
  `turn_id` is 0.
  """
  last = turn_id.max()
  texts = [
      parts.environment.stated(ids[turn_id == turn], cut and turn == last)
      for turn in range(1, last + 1)
  ]
  output = ids[turn_id == 0]
  return "\n".join([*texts, parts.tokenizer.decode(output)] if len(output) else texts)


@dataclasses.dataclass(frozen=True)
class Verdicts:
  """Arrays [B] on the host: rewards f32, correct bool, keep bool (False: unscored)."""

  rewards: np.ndarray
  correct: np.ndarray
  keep: np.ndarray
  texts: list[str]
  rows: list[Reward]

  def take(self, index: np.ndarray) -> "Verdicts":
    """The verdicts of some rows."""
    listed = lambda values: [values[i] for i in index]
    return Verdicts(self.rewards[index], self.correct[index], self.keep[index], listed(self.texts),
                    listed(self.rows))

  @staticmethod
  def join(parts: list["Verdicts"]) -> "Verdicts":
    arrays = lambda name: np.concatenate([getattr(p, name) for p in parts])
    lists = lambda name: [x for p in parts for x in getattr(p, name)]
    return Verdicts(arrays("rewards"), arrays("correct"), arrays("keep"), lists("texts"),
                    lists("rows"))


def verify(parts: Parts, problems: list[Problem], rollout: Rollout) -> Verdicts:
  """Verdict of each row; `problems` are repeated over the rows of their group.

  Args:
    rollout: on the host.
  """
  texts = completions(parts, rollout)
  group = len(texts) // len(problems)
  verdicts = parts.task.rewards([problems[i // group] for i in range(len(texts))], texts)
  keep = np.array([v.unscored_reason is None for v in verdicts])
  if rollout.void is not None:
    keep &= ~np.asarray(rollout.void)
  rewards = np.array([v.value if k else 0.0 for v, k in zip(verdicts, keep, strict=True)],
                     np.float32)
  correct = np.array([v.correct for v in verdicts]) & keep
  return Verdicts(rewards, correct, keep, texts, verdicts)


def shuffled(rewards: np.ndarray, keep: np.ndarray, seed: int,
             iteration: int) -> tuple[np.ndarray, np.ndarray]:
  """The control: the same rewards and keeps, dealt to random rows of the batch."""
  order = np.random.default_rng((seed, iteration, 1)).permutation(len(rewards))
  return rewards[order], keep[order]


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
    problem, reward, n = problems[row // group], verdicts.rows[row], int(rollout.length[row])
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


def iteration_key(seed: int, iteration: int) -> jax.Array:
  """Sampling key of an iteration; row ids tell rows apart within it and across iterations."""
  return jax.random.fold_in(jax.random.key(seed), iteration)
