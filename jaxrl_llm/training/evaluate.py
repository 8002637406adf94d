"""Greedy accuracy on held-out problems."""

import dataclasses

import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.training import collect
from jaxrl_llm.training.setup import Parts
from jaxrl_llm.types import Problem, Rollout


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """problems and correct are aligned with the rows of `rollout` (device) and `texts`."""

  problems: list[Problem]
  correct: np.ndarray
  texts: list[str]
  rollout: Rollout
  metrics: dict[str, float]


def evaluate(parts: Parts, params) -> Evaluation:
  """Greedy completions of the held-out problems; `eval/accuracy` is the share of scored ones that is right."""
  problems = parts.task.heldout(parts.cfg.task.heldout_problems)
  prompts = collect.prompt_batch(parts, problems, 1, 0)
  rollout = parts.sample_heldout(params, prompts, collect.iteration_key(parts.cfg.seed, 0), collect.sampling(0.0))
  host = parallel.gather_host(rollout)
  verdicts = collect.verify(parts, problems, host)
  scored = verdicts.keep
  metrics = {"eval/accuracy": float(np.mean(verdicts.correct[scored])) if scored.any() else float("nan"),
             "eval/length": float(np.mean(host.length - host.prompt_length)),
             "eval/truncated": float(np.mean(host.truncated)), "eval/unscored": float(np.mean(~scored))}
  return Evaluation(problems, verdicts.correct, verdicts.texts, rollout, metrics)


def samples(parts: Parts, params, other_params, evaluation: Evaluation, count: int) -> list[dict]:
  """The first `count` rows with, per completion token, log-prob under `params` minus that under `other_params`."""
  at_one = collect.sampling(1.0)
  log_probs = [parallel.gather_host(parts.score_heldout(p, evaluation.rollout, at_one).log_probs)
               for p in (params, other_params)]
  host = parallel.gather_host(evaluation.rollout)
  out = []
  for row in range(min(count, len(evaluation.problems))):
    mask, problem = host.mask[row], evaluation.problems[row]
    out.append({
        "prompt": problem.prompt, "answer": problem.answer, "completion": evaluation.texts[row],
        "correct": bool(evaluation.correct[row]), "truncated": bool(host.truncated[row]),
        "pieces": [parts.tokenizer.decode([t]) for t in host.tokens[row][mask].tolist()],
        "log_ratio": (log_probs[0] - log_probs[1])[row][mask].tolist()})
  return out
