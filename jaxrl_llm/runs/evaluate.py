"""Accuracy or mean reward on held-out problems: greedy, and of several samples per problem."""

import dataclasses

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.config import EvaluationConfig
from jaxrl_llm.parallel import processes
from jaxrl_llm.reporting.metrics_at_k import pass_at_k
from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.runs.records import component_means, everywhere, row_facts, uncompared
from jaxrl_llm.runs.rollout_batch import by_row, iteration_key, prompt_batch
from jaxrl_llm.runs.verdicts import verify
from jaxrl_llm.types import Params, Problem, PromptBatch, Rollout, Sampling
from jaxrl_llm.wiring.evaluation_sets import EvaluationSet
from jaxrl_llm.wiring.sampler import Sampler

__all__ = ["Evaluation", "evaluate", "pass_at_k", "sample_rows", "sampled_metrics"]

# Folded into the key, so that evaluation rows do not reuse the noise of rollout rows with the same
# id.
SAMPLES_KEY = 0xE7A1


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A greedy evaluation; `problems`, `correct` and `texts` are aligned with the rows of `rollout`,
  which is on the host. They are of this process only; the metrics are of all.
  """

  problems: list[Problem]
  correct: np.ndarray
  texts: list[str]
  rollout: Rollout
  metrics: dict[str, float]


def evaluate(heldout: EvaluationSet, sampler: Sampler, params: Params, *,
             piece: int | None = None) -> Evaluation:
  """Evaluates greedy completions of held-out problems. `accuracy` is the share of correct ones,
  where one without a verdict counts as wrong; `accuracy_scored` is the share among completions with
  a verdict. Where the reward does not say what is correct, there is neither.

  Args:
    heldout: the problems; their metrics are named eval/<name of the set>/accuracy and so on.
    params: as the model reads them.
    piece: rows computed together, which bounds the memory and changes nothing else; None: the rows
      of an iteration.
  """
  begin, problems = _local_problems(heldout.problems)
  prompts = prompt_batch(heldout.task, problems, heldout.rollout.max_prompt_tokens, first_row=begin)
  draw = Draw(iteration_key(heldout.seed, 0), Sampling.of(0.0))
  host = sample_rows(sampler, params, prompts, draw,
                     piece=piece or heldout.rollout.rows, problems=problems)
  local_verdicts = verify(heldout.task, sampler.environment, heldout.rollout, problems, host)
  verdicts, rows = everywhere(local_verdicts, row_facts(host))
  metrics = component_means("eval", verdicts) | uncompared("eval", verdicts) | {
      "eval/reward": _mean(verdicts.rewards[verdicts.keep]),
      "eval/length": float(np.mean(rows.new)),
      "eval/truncated": float(np.mean(rows.truncated)),
      "eval/unscored": float(np.mean(~verdicts.keep)),
  }
  if verdicts.graded:
    metrics |= {"eval/accuracy": float(np.mean(verdicts.correct)),
                "eval/accuracy_scored": _mean(verdicts.correct[verdicts.keep])}
  if heldout.too_long:
    metrics["eval/too_long"] = float(heldout.too_long)
  return Evaluation(problems, local_verdicts.correct, local_verdicts.texts, host,
                    heldout.named(metrics))


def sampled_metrics(heldout: EvaluationSet, sampler: Sampler, params: Params, iteration: int,
                    evaluation: EvaluationConfig, *, piece: int | None = None) -> dict[str, float]:
  """Returns `avg@n` and `pass@n` of n sampled completions per held-out problem; empty if n is 0.

  Both are means over problems, and samples without a verdict count as wrong. `avg@n_scored` and
  `pass@n_scored` leave out these samples, and problems without any verdict. Where the reward does
  not say what is correct, it is `reward@n`, the mean over samples with a verdict.

  Args:
    heldout: n is its `samples`, or else `evaluation.samples`; so is the temperature.
    piece: as in `evaluate`.
  """
  samples = evaluation.samples if heldout.samples is None else heldout.samples
  if not samples:
    return {}
  begin, local_problems = _local_problems(heldout.problems)
  repeated = [problem for problem in local_problems for _ in range(samples)]
  prompts = prompt_batch(heldout.task, repeated, heldout.rollout.max_prompt_tokens,
                         first_row=begin * samples)
  key = heldout.key(jax.random.fold_in(iteration_key(heldout.seed, iteration), SAMPLES_KEY))
  heat = evaluation.temperature if heldout.temperature is None else heldout.temperature
  host = sample_rows(sampler, params, prompts, Draw(key, Sampling.of(heat)),
                     piece=piece or heldout.rollout.rows, problems=repeated, group_size=samples)
  local = verify(heldout.task, sampler.environment, heldout.rollout, repeated, host)
  verdicts, _ = everywhere(local, row_facts(host))
  if not verdicts.graded:
    return heldout.named({f"eval/reward@{samples}": _mean(verdicts.rewards[verdicts.keep])})
  correct = verdicts.correct.reshape(-1, samples)
  solved, count = np.asarray(correct.any(1)), verdicts.keep.reshape(-1, samples).sum(1)
  scored = count > 0
  return heldout.named({
      f"eval/avg@{samples}": float(np.mean(correct)),
      f"eval/avg@{samples}_scored": _mean(correct.sum(1)[scored] / count[scored]),
      f"eval/pass@{samples}": float(np.mean(solved)),
      f"eval/pass@{samples}_scored": _mean(solved[scored]),
  })


def _local_problems(problems: list[Problem]) -> tuple[int, list[Problem]]:
  """Returns (index of the first, the problems) that this process asks; counts differ by at most
  one.
  """
  mine = np.array_split(np.arange(len(problems)), processes.count())[processes.index()]
  return int(mine[0]), [problems[i] for i in mine]


def _mean(values: np.ndarray) -> float:
  """Returns the mean; NaN of nothing."""
  return float(np.mean(values)) if len(values) else float("nan")


def sample_rows(sampler: Sampler, params: Params, prompts: PromptBatch, draw: Draw, *, piece: int,
                problems: list[Problem] | None = None, group_size: int = 1) -> Rollout:
  """Returns a completion per row, on the host without padding, made in pieces of equal shape.

  Args:
    params: as the model reads them.
    prompts: B rows on the host, of this process. A row's noise depends on (key, row id) only, not
      on its piece.
    draw: key and sampling.
    piece: rows of one call, rounded up to whole groups that divide over the devices.
    problems: one per row, for an environment that reads them; None: unknown.
    group_size: rows of each prompt, which are contiguous.
  """
  count = len(prompts.row_id)
  local_mesh = parallel.of_process(sampler.mesh)
  size = group_size * parallel.padded(-(-min(piece, count) // group_size),
                                      parallel.row_mesh(local_mesh))
  of_rows = {}
  if sampler.environment and problems:
    of_rows = {"problems": by_row(prompts, problems)}
  pieces, params = [], sampler.prepare_heldout(params)
  for begin in range(0, count, size):
    index = np.minimum(np.arange(begin, begin + size), count - 1)
    rows = _rows(prompts, index).replace(
        group_id=np.arange(size, dtype=np.int32) // group_size)
    rows = parallel.to_global(rows, local_mesh)
    rollout = sampler.sample_heldout(params, rows, draw.key, draw.sampling,
                                     group_size=group_size, **of_rows)
    pieces.append(_rows(parallel.gather_host(rollout), slice(count - begin)))
  rollout_rows = jax.tree.map(lambda *x: np.concatenate(x), *pieces)
  return rollout_rows.replace(group_id=np.arange(count, dtype=np.int32))


def _rows(tree, index):
  """Returns the rows that `index` (integers or a slice) selects from each array."""
  return jax.tree.map(lambda x: x[index], tree)
