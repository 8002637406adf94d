"""Accuracy on held-out problems: greedy, and of several samples per problem."""

import dataclasses

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.reporting.metrics_at_k import pass_at_k
from jaxrl_llm.runs import collect
from jaxrl_llm.runs.setup import Parts
from jaxrl_llm.types import Problem, Rollout, Sampling

__all__ = ["Evaluation", "evaluate", "pass_at_k", "sample_rows", "sampled_metrics", "samples"]

# noise of sampled evaluations is none of the rollouts', whose row ids may be the same
SAMPLES_KEY = 0xE7A1


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """problems, correct and texts are aligned with the rows of `rollout`, which is on the host."""

  problems: list[Problem]
  correct: np.ndarray
  texts: list[str]
  rollout: Rollout
  metrics: dict[str, float]


def evaluate(parts: Parts, params, *, piece: int | None = None) -> Evaluation:
  """Greedy completions of the held-out problems; `eval/accuracy` is the share of scored ones that
  is right.

  Args:
    piece: rows computed at once, which bounds the memory and changes nothing else; None: those of
      an iteration.
  """
  problems = parts.task.heldout(parts.cfg.task.heldout_problems)
  host = sample_rows(parts, params, problems, np.arange(len(problems)),
                     collect.iteration_key(parts.cfg.seed, 0), Sampling.of(0.0), piece=piece)
  verdicts = collect.verify(parts, problems, host)
  scored = verdicts.keep
  metrics = {
      "eval/accuracy": float(np.mean(verdicts.correct[scored])) if scored.any() else float("nan"),
      "eval/length": float(np.mean(host.length - host.prompt_length)),
      "eval/truncated": float(np.mean(host.truncated)),
      "eval/unscored": float(np.mean(~scored))
  }
  return Evaluation(problems, verdicts.correct, verdicts.texts, host, metrics)


def sampled_metrics(parts: Parts, params, iteration: int, *,
                    piece: int | None = None) -> dict[str, float]:
  """`eval/avg@n` and `eval/pass@n` of n = evaluation.samples completions per held-out problem;
  empty where n is 0.

  Both are means over problems; samples without a verdict are left out, and problems without any
  verdict too.
  """
  cfg = parts.cfg.evaluation
  if not cfg.samples:
    return {}
  problems = parts.task.heldout(parts.cfg.task.heldout_problems)
  repeated = [problem for problem in problems for _ in range(cfg.samples)]
  key = jax.random.fold_in(collect.iteration_key(parts.cfg.seed, iteration), SAMPLES_KEY)
  host = sample_rows(parts, params, repeated, np.arange(len(repeated)), key,
                     Sampling.of(cfg.temperature), piece=piece)
  verdicts = collect.verify(parts, repeated, host)
  correct, kept = (x.reshape(len(problems), cfg.samples) for x in (verdicts.correct, verdicts.keep))
  count = kept.sum(1)
  some = count > 0
  mean = lambda values: float(np.mean(values)) if len(values) else float("nan")
  return {f"eval/avg@{cfg.samples}": mean(correct.sum(1)[some] / count[some]),
          f"eval/pass@{cfg.samples}": mean(correct.any(1)[some])}


def sample_rows(parts: Parts, params, problems: list[Problem], row_id: np.ndarray, key: jax.Array,
                sampling: Sampling, *, piece: int | None = None) -> Rollout:
  """One completion per row, in pieces of equal shape; the last is padded. The key is consumed.

  Args:
    problems: one per row.
    row_id: int [B]; a row's noise is that of (key, row id), whatever the piece.
    piece: rows at once, raised to a multiple of the devices that hold rows; None: those of an
      iteration.

  Returns:
    The rows on the host, without padding.
  """
  shards = parts.mesh.shape["data"] * parts.mesh.shape["fsdp"]
  size = -(-min(piece or parts.cfg.rows, len(problems)) // shards) * shards
  found = []
  for begin in range(0, len(problems), size):
    at = np.minimum(np.arange(begin, begin + size), len(problems) - 1)
    prompts = collect.prompt_batch(parts, [problems[i] for i in at], 1, 0)
    prompts = prompts.replace(
        row_id=parallel.to_global(np.asarray(row_id)[at].astype(np.int32), parts.mesh))
    rollout = parallel.gather_host(parts.sample_heldout(params, prompts, key, sampling))
    found.append(jax.tree.map(lambda x, n=len(problems) - begin: x[:n], rollout))
  rows = jax.tree.map(lambda *x: np.concatenate(x), *found)
  return rows.replace(group_id=np.arange(len(problems), dtype=np.int32))


def samples(parts: Parts, params, other_params, evaluation: Evaluation, count: int) -> list[dict]:
  """The first `count` rows with, per completion token, log-prob under `params` minus that under
  `other_params`.

  It is None for tokens of a tool.
  """
  count = min(count, len(evaluation.problems))
  log_probs = [_log_probs(parts, p, evaluation.rollout, count) for p in (params, other_params)]
  host = evaluation.rollout
  out = []
  for row in range(count):
    problem, inside = evaluation.problems[row], slice(host.prompt_length[row], host.length[row])
    change = (log_probs[0] - log_probs[1])[row][inside].tolist()
    out.append({
        "prompt":
            problem.prompt,
        "answer":
            problem.answer,
        "completion":
            evaluation.texts[row],
        "correct":
            bool(evaluation.correct[row]),
        "truncated":
            bool(host.truncated[row]),
        "pieces": [parts.tokenizer.decode([t]) for t in host.tokens[row][inside].tolist()],
        "log_ratio": [
            x if ours else None for x, ours in zip(change, host.mask[row][inside], strict=True)
        ]
    })
  return out


def _log_probs(parts: Parts, params, rollout: Rollout, count: int) -> np.ndarray:
  """[count, L] of the first rows at temperature 1, in the fewest rows that divide over the devices.
  """
  shards = parts.mesh.shape["data"] * parts.mesh.shape["fsdp"]
  at = np.minimum(np.arange(-(-count // shards) * shards), count - 1)
  rows = parallel.to_global(jax.tree.map(lambda x: x[at], rollout), parts.mesh)
  return parallel.gather_host(parts.score_heldout(params, rows, Sampling.of(1.0)).log_probs)[:count]
