"""Signs that a run cannot learn: each is named once, with a completion that shows it and the keys
that usually mend it.

`--config.warnings=none` ends them. Nothing here enters the run's files, and the samples of the
start have a key and rows of their own, so that the files are the same to the byte with and without.
"""

import logging
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.runs.evaluate import Evaluation, sample_rows
from jaxrl_llm.runs.observers import Observed, Observer
from jaxrl_llm.runs.rollout_batch import RolloutBatch, iteration_key, prompt_batch
from jaxrl_llm.runs.verdicts import Verdicts, verify
from jaxrl_llm.types import STOP_TOKEN, Params, Rollout, Sampling
from jaxrl_llm.wiring.evaluation_sets import EvaluationSet
from jaxrl_llm.wiring.sampler import Sampler

STEADY = 3  # iterations in a row that must show a sign
SAMPLES, ONE_PROGRAM = 16, 256  # completions at the start; rows that cost less than a compilation
START_KEY = 0x51A7  # folded into the key: other noise than that of rollouts and evaluations
CHARACTERS = 160  # of a completion that is shown
MISSING = "missing"  # the rung of a verdict that found no answer
logger = logging.getLogger(__name__)

Facts = dict[str, float]


class Rule(NamedTuple):
  """A sign: whether an iteration shows it, what it means, and what usually mends it.

  Attributes:
    holds: of the iteration's metrics and `facts`; a name that is absent is NaN.
    sentence: a format over `f`, the same.
    fix: keys.
    steady: iterations in a row that must show it.
  """

  holds: Callable[[Facts], bool]
  sentence: str
  fix: str
  steady: int = STEADY


RULES = {
    "constant reward": Rule(
        lambda f: f["lowest"] == f["highest"],
        "all rewards of an iteration are {f[highest]:g}, so that nothing is learnt",
        "task.data.verifier or reward.name, problems of another difficulty, or a larger "
        "rollout.group_size"),
    "no answer": Rule(
        lambda f: f["missing"] == 1.0, "no answer is found in any completion",
        "task.data.verifier (numeric reads a number in any text, exact and math want a form), or "
        "task.prompt.system, which asks for the form"),
    "no stop": Rule(
        lambda f: f["stopped"] == 0.0 and f["rollout/truncated"] > 0.5,
        "no completion ends by a stop token, {f[rollout/truncated]:.0%} are cut off",
        "task.prompt.style=chat for a chat model, a larger rollout.max_new_tokens, or a smaller "
        "rollout.min_new_tokens"),
    "cut off": Rule(
        lambda f: f["stopped"] > 0.0 and f["rollout/truncated"] > 0.5,
        "{f[rollout/truncated]:.0%} of the completions are cut off",
        "rollout.max_new_tokens, or a prompt that asks for less"),
    "shrunk": Rule(
        lambda f: f["rollout/length"] <= min(2.0, f["first_length"] / 4) and not f[
            "reward/correct"] > 0.5,
        "completions have shrunk from {f[first_length]:.1f} to {f[rollout/length]:.1f} tokens",
        "a smaller optimizer.learning_rate, from an earlier checkpoint or a new --workdir"),
    "certain": Rule(
        lambda f: f["policy/entropy"] < 0.01 and not f["reward/correct"] > 0.5,
        "entropy {f[policy/entropy]:.2g} nats: nearly every token is certain, and completions of a "
        "group are alike",
        "a smaller optimizer.learning_rate, rollout.temperature=1, or entropy.coef"),
    "random": Rule(
        lambda f: f["policy/entropy"] > 0.95 * f["most_entropy"],
        "entropy {f[policy/entropy]:.2f} of {f[most_entropy]:.2f} nats: tokens are random",
        "pretrained or warm_start.steps; a smaller optimizer.learning_rate if it was lower before"),
    "few": Rule(
        lambda f: f["ratio/ess"] < 0.1,
        "ratio/ess = {f[ratio/ess]:.3f}: by the ratios of whole completions fewer than one in ten "
        "decides an update whose estimator weighs by them",
        "fresher samples (updates.staleness, updates.optimizer_batches), a smaller "
        "optimizer.learning_rate, or, with unbounded ratios, an estimator that bounds them",
        steady=1),
}


class Absent(dict):
  """Facts in which what was not measured is NaN, which no rule's comparison holds for."""

  def __missing__(self, key: str) -> float:
    return math.nan


class Symptoms:
  """Looks at each iteration, in order, and logs a rule's sentence once.

  Args:
    vocab_size: tokens of the network, which bound the entropy.
    rules: by name; empty: nothing is looked at.
  """

  def __init__(self, vocab_size: int, rules: dict[str, Rule] = RULES):
    self._most, self._rules = math.log(vocab_size), dict(rules)
    self._shown = dict.fromkeys(rules, 0)  # iterations in a row
    self._first_length: float | None = None

  def look(self, iteration: int, metrics: Facts, text: str) -> None:
    """Args: metrics of the iteration with its `facts`, and one of its completions."""
    values = Absent(metrics, most_entropy=self._most)
    if self._first_length is None:
      self._first_length = values["rollout/length"]
    values["first_length"] = self._first_length
    for name, rule in list(self._rules.items()):
      self._shown[name] = self._shown[name] + 1 if rule.holds(values) else 0
      if self._shown[name] == rule.steady:
        del self._rules[name]
        logger.warning("iteration %d: %s; such as %r. Fix: %s (--config.warnings=none: no such "
                       "lines)", iteration, rule.sentence.format(f=values), text[:CHARACTERS],
                       rule.fix)


class Signs(Observer):
  """Says at the start what the policy writes, and then looks at each iteration, in process 0."""

  def __init__(self, run: Observed):
    super().__init__(run)
    self._says = run.loop.schedule.warnings
    self._symptoms = Symptoms(run.loop.learner.model.config.vocab_size, RULES if self._says else {})
    self._sampled: tuple[Facts, str] = ({}, "")

  def evaluated(self, iteration: int, params: Params, evaluation: Evaluation) -> None:
    """Samples some completions of the warm start."""
    del evaluation
    if not iteration and self._says:
      tqdm.write(at_start(self.run.heldout, self.run.loop.source.sampler, params))

  def sampled(self, iteration: int, batch: RolloutBatch) -> None:
    del iteration
    self._sampled = facts(batch.verdicts, batch.host), (batch.verdicts.texts or [""])[0]

  def written(self, iteration: int, values: dict[str, float]) -> None:
    batch_facts, text = self._sampled
    self._symptoms.look(iteration, values | batch_facts, text)


def facts(verdicts: Verdicts, rollout: Rollout) -> Facts:
  """Returns of rows on the host the smallest and largest reward, NaN where none is kept, the share
  that a stop token ended, and the share without an answer, 0 where verdicts do not say.
  """
  kept_rewards = verdicts.rewards[verdicts.keep]
  rungs = [reward.rung for reward in verdicts.given]
  return {"lowest": float(kept_rewards.min()) if len(kept_rewards) else math.nan,
          "highest": float(kept_rewards.max()) if len(kept_rewards) else math.nan,
          "stopped": float(np.mean(np.asarray(rollout.stop_reason) == STOP_TOKEN)),
          "missing": rungs.count(MISSING) / max(1, len(rungs))}


def at_start(heldout: EvaluationSet, sampler: Sampler, params: Params) -> str:
  """Returns a line on SAMPLES sampled completions of held-out problems, and two of them.

  Args:
    params: as the model reads them.
  """
  rows = min(heldout.rollout.rows, len(heldout.problems))  # as in an evaluation: the same program
  count = rows if SAMPLES < rows <= ONE_PROGRAM else SAMPLES
  problems = [heldout.problems[row % len(heldout.problems)] for row in range(count)]
  prompts = prompt_batch(heldout.task, problems, heldout.rollout.max_prompt_tokens)
  key = jax.random.fold_in(iteration_key(heldout.seed, 0), START_KEY)
  host = sample_rows(sampler, params, prompts,
                     Draw(key, Sampling.of(heldout.rollout.temperature)), piece=rows,
                     problems=problems)
  host = jax.tree.map(lambda x: x[:SAMPLES], host)
  verdicts = verify(heldout.task, sampler.environment, heldout.rollout, problems[:SAMPLES], host)
  signs = facts(verdicts, host)
  score = (f"{np.mean(verdicts.correct):.0%} correct" if verdicts.graded else
           f"reward {np.mean(verdicts.rewards):.3f}")
  lines = [f"{SAMPLES} sampled completions before training: {score}, "
           f"{np.mean(host.truncated):.0%} cut off, {1 - signs['stopped']:.0%} without a stop "
           f"token, {signs['missing']:.0%} without an answer, such as"]
  lines += [f"  {problem.prompt[-CHARACTERS:]!r} -> {text[:CHARACTERS]!r}"
            for problem, text in zip(problems[:2], verdicts.texts, strict=False)]
  return "\n".join(lines)
