"""Times the objective (advantage, aggregation, estimator) against the train step, on workload W.

  python experiments/bench/objective.py
  python experiments/bench/objective.py --estimators=gspo,m2po --reps 5 --json out.json

Both are jitted and take turns in one process. The objective is everything that depends on the
choice of method: advantages and weights of the rollout batch, then the weighted loss and its
gradient with respect to the log-probs. Target: at most 2 % of the time of the train step that it is
part of.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm.config import EstimatorConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.training.score import Scores

import measure
import workload

RESULT = Path(__file__).parent / "results" / "objective.json"
TARGET = 0.02


def objective(programs, name: str):
  """Returns f(rollout, rewards, log_probs, anchor) -> (loss, gradient over log_probs), jitted."""
  anchor_of, estimator = estimators.spec(name).anchor, estimators.get_estimator(name)

  def run(rollout, rewards, log_probs, anchor):
    (batch,), _ = programs.batches(rollout, rewards, jnp.ones(len(rewards), bool), Scores(anchor))

    def loss(log_probs):
      denominator = rollout.behavior_log_probs if anchor_of == "behavior" else anchor
      columns = estimators.stand_ins(EstimatorConfig(name), denominator, rollout.mask)
      out = estimator(log_probs, denominator, batch.advantages, rollout.mask, EstimatorConfig(name),
                      **columns)
      return jnp.sum(batch.loss_weights * jnp.where(rollout.mask, out.per_token_loss, 0))

    return jax.value_and_grad(loss)(log_probs)

  return jax.jit(run)


def compare(programs, names: list[str], reps: int) -> list[dict]:
  """Times each objective and the train step in turn."""
  state = workload.start(programs)
  rollout, _ = workload.rollout(programs, state.params, 0)
  host = jax.device_get(rollout)
  rewards = jnp.asarray(workload.even_share(host.tokens, host.mask))
  anchor = rollout.behavior_log_probs
  log_probs = anchor + 0.01 * jax.random.normal(jax.random.key(0), anchor.shape)
  batch = workload.train_batch(programs, rollout, host)
  runs = {name: objective(programs, name) for name in names}
  times = {name: [] for name in [*names, "train_step"]}
  for rep in range(reps + 1):  # the first compiles
    for name, run in runs.items():
      spent, _ = measure.seconds(run, rollout, rewards, log_probs, anchor)
      if rep:
        times[name].append(spent)
    spent, (state, _) = measure.seconds(programs.step, state, batch)
    if rep:
      times["train_step"].append(spent)
  step = float(np.median(times["train_step"]))
  return [{
      "estimator": name,
      "seconds": times[name],
      "median": float(np.median(times[name])),
      "train_step_median": step,
      "train_step_seconds": times["train_step"],
      "share": float(np.median(times[name])) / step,
      "target": TARGET,
  } for name in names]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--estimators", default="ctpo,minpro",
                      help="names, separated by commas (default ctpo,minpro)")
  parser.add_argument("--reps", type=int, default=7, help="measured calls of each (default 7)")
  parser.add_argument("--micro", type=int, default=16,
                      help="micro-batches of the train step (default 16, its fastest)")
  parser.add_argument("--json", type=Path, default=RESULT,
                      help="file of all numbers (default results/objective.json)")
  args = parser.parse_args()
  environment = measure.environment()
  rows = compare(workload.build(workload.Shape(), args.micro), args.estimators.split(","),
                 args.reps)
  args.json.parent.mkdir(parents=True, exist_ok=True)
  args.json.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")
  print("| estimator | objective, ms | train step, ms | share | target |\n|---|---|---|---|---|")
  for row in rows:
    print(f"| {row['estimator']} | {1e3 * row['median']:.2f} "
          f"| {1e3 * row['train_step_median']:.0f} | {100 * row['share']:.2f} % "
          f"| {100 * TARGET:.0f} % |")


if __name__ == "__main__":
  main()
