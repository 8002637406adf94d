"""Does a calibrated coefficient make a second head worth training beside the policy?

  python experiments/papers/occ/toy.py             # the seeds that are missing, then the tables
  python experiments/papers/occ/toy.py --render    # the tables again, from the committed results

Writes results/seed<n>.json and the tables of README.md beside this file.
"""

import contextlib
import dataclasses
import functools
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.papers.occ import gradients
from experiments.papers.occ.config import get_config
from experiments.tables_lib import seed_results
from experiments.tables_lib.compare import interval
from experiments.tables_lib.page_parts import narrow_tables, replace_part
from jaxrl_llm.config import Config, StepConfig, from_dict
from jaxrl_llm.runs import evaluate
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.run_state import RunState, first_state
from jaxrl_llm.wiring import evaluation_sets, setup
from jaxrl_llm.wiring.evaluation_sets import EvaluationSet
from jaxrl_llm.wiring.learner import Learner
from jaxrl_llm.wiring.loop import make_loop
from jaxrl_llm.wiring.sampler import Sampler
from jaxrl_llm.wiring.warm_start import warm_start

HERE = Path(__file__).parent
SEEDS = tuple(range(5))
ITERATIONS, EVALUATE_EVERY, WATCH_EVERY = 40, 10, 2
COEF = 0.3  # of the fixed losses: in a trial on seed 100, the mean of OCC's was 0.33
LOSSES = {"detach": {"coef": COEF}, "ce": {"coef": COEF}, "policy": {"coef": COEF}, "occ": {}}
TERMS = {"detach": "mtp_detach", "ce": "mtp_ce", "policy": "mtp_policy", "occ": "occ"}
WATCHED = ("policy", "occ")  # losses whose batches hold the head's anchor
LATE = slice(-10, None)  # the iterations whose rewards a row of the table shows

OUTCOME = ("loss of the head", "held-out accuracy, %", "reward, last 10 iterations, %",
           "head right two ahead, %", "mean coefficient", "accuracy - that of `detach`",
           "two ahead - that of `detach`")
TIME = ("iterations", "coefficient of `occ`", "cosine of the changes",
        "head right at their end, `detach`, %", "the same, `occ`, %")
AGREEMENT = ("loss of the head", "batches of a seed", "c / v², true", "quotient of OCC",
             "cosine of the gradients", "correlation of the first two")
# The columns reported for a run.
OUTCOMES = {
    "accuracy": lambda one: 100 * one["accuracy"][-1],
    "reward": lambda one: 100 * np.mean(one["reward"][LATE]),
    "ahead": lambda one: 100 * one["ahead"][-1],
    "coefficient": lambda one: np.mean(np.concatenate(one["coefficient"])),
}


def config(loss: str, seed: int, iterations: int = ITERATIONS) -> Config:
  """Returns a run of the table."""
  values = get_config(TERMS[loss])
  values.seed, values.iterations = seed, iterations
  values.term.update(LOSSES[loss])
  return from_dict(values)


class Watch:
  """`Learner.step` that also measures, in the last optimizer batch of every WATCH_EVERY-th
  iteration, what OCC's quotient stands for.

  Attributes:
    agreements: (true quotient, cosine of the gradients, calibrated quotient) of each measurement.
  """

  def __init__(self, learner: Learner):
    self._step, self._calls, self.agreements = learner.step, 0, []
    self._every = WATCH_EVERY * learner.updates.optimizer_batches
    self._measure = jax.jit(functools.partial(gradients.agreement, model=learner.model,
                                              cfg=StepConfig(learner.cfg.loss)))

  def __call__(self, state, batch, packing=None):
    self._calls += 1
    if self._calls % self._every == 0:
      agreement = jax.device_get(self._measure(state, batch))
      self.agreements.append([round(float(x), 5) for x in agreement])
    return self._step(state, batch, packing)


class Heldout:
  """Evaluates greedily: `accuracy` of the answers, and `ahead`, of the second head's guesses of the
  tokens that the policy wrote.
  """

  def __init__(self, heldout: EvaluationSet, learner: Learner, sampler: Sampler):
    self._asked, self._learner, self._sampler = heldout, learner, sampler
    self._guesses = jax.jit(functools.partial(gradients.head_accuracy, model=learner.model))
    self.accuracies: dict[str, list[float]] = {"accuracy": [], "ahead": []}

  def __call__(self, run: RunState) -> None:
    params = self._learner.merged(run.state)
    evaluation = evaluate.evaluate(self._asked, self._sampler, params)
    right, counted = self._guesses(params, jax.tree.map(jnp.asarray, evaluation.rollout))
    self.accuracies["accuracy"].append(round(evaluation.metrics["eval/accuracy"], 5))
    self.accuracies["ahead"].append(round(float(right) / float(counted), 5))


def trained(loss: str, seed: int, iterations: int, folder: Path) -> dict:
  """Returns what one run shows; the warm start in `folder` is that of all losses of the seed."""
  cfg = setup.resolve(config(loss, seed, iterations))
  cfg, task, learner, sampler = setup.build(cfg, jax.devices()[:1])
  out: dict[str, list] = {"reward": [], "coefficient": [], "cosine": []}
  with contextlib.closing(sampler):
    heldout = Heldout(evaluation_sets.make_sets(cfg, task)[0], learner, sampler)
    watch = Watch(learner)
    run = first_state(learner, warm_start(cfg, learner, task.tokenizer, folder))
    if cfg.term.name in [TERMS[loss] for loss in WATCHED]:
      learner = dataclasses.replace(learner, step=watch)
    loop = make_loop(cfg, task, learner, sampler)
    heldout(run)
    for iteration in range(1, cfg.iterations + 1):
      outcome = iterate(loop, run, None, iteration)
      run = outcome.run
      out["reward"].append(round(outcome.values["reward/mean"], 5))
      for name in ("coefficient", "cosine"):
        out[name].append(_values(jax.device_get(outcome.metrics.steps), f"mtp/{name}"))
      if iteration % EVALUATE_EVERY == 0:
        heldout(run)
  return heldout.accuracies | out | {"agreement": watch.agreements}


def _values(steps: list[dict], name: str) -> list[float]:
  """The metric of each optimizer batch that has one."""
  means = [step[name] for step in steps if name in step]
  return [round(float(mean.total / mean.count), 5) for mean in means if mean.count]


def measure(seed: int) -> dict:
  """Returns what the losses show from one warm start."""
  with tempfile.TemporaryDirectory() as folder:
    return {loss: trained(loss, seed, ITERATIONS, Path(folder)) for loss in LOSSES}


def outcome_rows(results: list[dict]) -> list[tuple]:
  """Rows of the first table: the start, each loss, and its difference from `detach` on the same
  seeds.
  """
  first = {name: interval(100 * np.array([one["occ"][name][0] for one in results]))
           for name in ("accuracy", "ahead")}
  rows = [("the warm start", first["accuracy"], "-", first["ahead"], "-", "-", "-")]
  for loss in LOSSES:
    outcomes = {name: _of(results, loss, name) for name in OUTCOMES}
    plain = {name: _of(results, "detach", name) for name in OUTCOMES}
    gains = [interval(outcomes[name] - plain[name]) if loss != "detach" else "-"
             for name in ("accuracy", "ahead")]
    rows.append((f"`{loss}`", *(interval(x) for x in outcomes.values()), *gains))
  return rows


def _of(results: list[dict], loss: str, name: str) -> np.ndarray:
  """An outcome of each seed: shares in %, the coefficient as it is."""
  take = OUTCOMES[name]
  return np.array([take(one[loss]) for one in results])


def time_rows(results: list[dict]) -> list[tuple]:
  """Rows of the second table: `occ` by tens of iterations."""
  rows = []
  for at in range(0, ITERATIONS, EVALUATE_EVERY):
    part = slice(at, at + EVALUATE_EVERY)
    means = [interval(np.array([np.mean(np.concatenate(one["occ"][name][part]))
                                for one in results])) for name in ("coefficient", "cosine")]
    ahead = [interval(100 * np.array([one[loss]["ahead"][at // EVALUATE_EVERY + 1]
                                      for one in results])) for loss in ("detach", "occ")]
    rows.append((f"{at + 1} to {at + EVALUATE_EVERY}", *means, *ahead))
  return rows


def agreement_rows(results: list[dict]) -> list[tuple]:
  """Rows of the third table: true against calibrated quotient, by loss."""
  rows = []
  for loss in WATCHED:
    each = [np.array(one[loss]["agreement"]).T for one in results]
    rows.append((f"`{loss}`", str(each[0].shape[1]),
                 *(interval(np.array([np.mean(one[k]) for one in each])) for k in (0, 2, 1)),
                 interval(np.array([np.corrcoef(one[0], one[2])[0, 1] for one in each]))))
  return rows


def write_tables(results: list[dict], page: Path) -> None:
  """Writes the three tables into the page."""
  for name, header, rows in (("outcome", OUTCOME, outcome_rows(results)),
                             ("time", TIME, time_rows(results)),
                             ("agreement", AGREEMENT, agreement_rows(results))):
    replace_part(page, f"toy.py, {name}", narrow_tables(header, rows))


if __name__ == "__main__":
  seed_results.main(__doc__, HERE, SEEDS, measure, write_tables)
