r"""How noisy the policy gradient is under each baseline, on SmolLM2's worked answers.

  python experiments/main.py --config=configs/smollm2_chains.py --workdir=runs/chains
  python experiments/smollm2/baseline_noise.py --workdir=runs/chains --batches=2
  python experiments/smollm2/baseline_noise.py

The policy after the run's warm start samples 64 answers of each problem, cut into groups of 4 and
of 32. A group's gradient is the mean over its rows of the sum over tokens of advantage times grad
log p; its noise is the trace of its covariance over the groups of a problem, at equal tokens, which
projections on random directions estimate without bias (own derivation): for u with independent
entries of variance 1, E (u . g)^2 = ||g||^2. u . grad log p of every token comes from two forward
passes. With --workdir the figures are measured and stored in baseline_noise.json.
"""

import contextlib
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from experiments.smollm2 import measurement, policies
from experiments.smollm2.token_energy import log_probs
from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective.advantages import get_advantage
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.types import AdvantageInputs

ROWS, SIZES, PIECE, DIRECTIONS = 64, (4, 32), 8, 2
STEP = 3e-4  # of parameters in f32
BASELINES = {
    "none": AdvantageConfig("none"),
    "rloo": AdvantageConfig("rloo"),
    "group mean": AdvantageConfig("dr_grpo"),
    "otb": AdvantageConfig("otb"),
    "otb, sequence": AdvantageConfig("otb", granularity="sequence"),
    "otb, others' rewards": AdvantageConfig("otb", leave_one_out=True),
}
# A row's own reward in its baseline shrinks the gradient by (n - 1) / n; it is undone here.
SHRUNK = ("group mean", "otb", "otb, sequence")
RESAMPLES = 2000


@functools.partial(jax.jit, static_argnums=0)
def slopes(model, params, tokens, columns, keys):
  """Returns (u . grad log p [K, R, T] for a direction u of each key, log p [R, T], sum of p^2 [R,
  T]) of the tokens at `columns`.

  A slope is a central difference of step STEP: the network's own backward rules have no forward
  mode.
  """
  leaves, tree = jax.tree.flatten(params)

  def at(step, key):
    of_leaves = jax.random.split(key, len(leaves))
    moved = [x + step * jax.random.normal(k, x.shape, x.dtype)
             for k, x in zip(of_leaves, leaves, strict=True)]
    return log_probs(model, jax.tree.unflatten(tree, moved), tokens, columns)[0]

  log_p, energy = log_probs(model, params, tokens, columns)
  along = lax.map(lambda key: (at(STEP, key) - at(-STEP, key)) / (2 * STEP), keys)
  return along, log_p, energy - 1 + 2 * jnp.exp(log_p)


def measure(workdir: Path, batches: int) -> dict:
  """Returns the noise of each baseline and size."""
  run = policies.of_run(workdir, prompts=4, group_size=ROWS)
  keys, parts = jax.random.split(jax.random.key(0), DIRECTIONS), []
  with contextlib.closing(run.sampler):
    params = run.params(0)
    for rollout, rewards in run.sample(params, batches):
      new = run.cfg.rollout.max_new_tokens
      columns = rollout.prompt_length[:, None] + np.arange(new)
      columns = np.minimum(columns, rollout.tokens.shape[1] - 1)
      live = np.take_along_axis(rollout.mask, columns, 1)
      pieces = [slopes(run.learner.model, params, rollout.tokens[i:i + PIECE],
                       columns[i:i + PIECE], keys) for i in range(0, len(rewards), PIECE)]
      along, *stats = zip(*jax.device_get(pieces), strict=True)
      parts.append((np.concatenate(along, 1), *map(np.concatenate, stats), live, rewards))
  along, log_p, squares, live, rewards = zip(*parts, strict=True)
  return summary(np.concatenate(along, 1), *map(np.concatenate, (log_p, squares, live, rewards)))


def group_gradients(along, log_p, squares, live, rewards, size: int, name: str) -> np.ndarray:
  """Returns the gradients of groups of `size` rows along each direction, [K, problems, groups]."""
  inputs = AdvantageInputs(
      rewards=jnp.asarray(rewards), mask=jnp.asarray(live), tokens=jnp.zeros(live.shape, jnp.int32),
      group_id=jnp.arange(len(rewards)) // size, anchor_log_probs=jnp.asarray(log_p),
      sum_pi_squared=jnp.asarray(squares))
  cfg = BASELINES[name]
  advantages = np.where(live, get_advantage(cfg.name)(inputs, cfg), 0.0)
  rows = np.einsum("krt,rt->kr", along, advantages, dtype=np.float64)
  scale = size / (size - 1) if name in SHRUNK else 1.0
  return scale * rows.reshape(len(along), -1, ROWS // size, size).mean(-1)


def summary(along: np.ndarray, log_p: np.ndarray, squares: np.ndarray, live: np.ndarray,
            rewards: np.ndarray) -> dict:
  """Returns, by size and baseline, the noise over RLOO's with intervals over problems.

  Args:
    along: [K, R, T], slopes along the directions; rows of a problem lie together.
    log_p, squares, live: [R, T].
    rewards: [R].
  """
  along = np.where(live, along, 0.0)
  problems = len(rewards) // ROWS
  drawn = np.random.default_rng(0).integers(0, problems, (RESAMPLES, problems))
  out = {"problems": problems, "rows": len(rewards), "accuracy": float((rewards > 0).mean()),
         "energy": float((1 - 2 * np.exp(log_p[live]) + squares[live]).mean()), "noise": {}}
  of_rloo = None
  for size in SIZES:
    noise = {}
    for name in BASELINES:
      gradients = group_gradients(along, log_p, squares, live, rewards, size, name)
      noise[name] = gradients.var(-1, ddof=1).mean(0) * size / ROWS  # of a problem, equal tokens
    of_rloo = noise["rloo"] if of_rloo is None else of_rloo
    out["noise"][str(size)] = {name: _ratio(noise[name], noise["rloo"], drawn) | {
        "of_4": float(noise[name].sum() / of_rloo.sum())} for name in BASELINES}
  return out


def _ratio(noise: np.ndarray, base: np.ndarray, drawn: np.ndarray) -> dict:
  ratios = noise[drawn].sum(1) / np.maximum(base[drawn].sum(1), 1e-300)
  low, high = np.percentile(ratios, (2.5, 97.5))
  return {"value": float(noise.sum() / base.sum()), "low": float(low), "high": float(high)}


def text(results: dict) -> str:
  """Returns the table of the page."""
  rows = [(size, name, f"{of['value']:.2f} ({of['low']:.2f} to {of['high']:.2f})",
           f"{of['of_4']:.2f}")
          for size, by_name in results["noise"].items() for name, of in by_name.items()]
  return "\n".join((
      f"{results['rows']} answers of {results['problems']} problems, {results['accuracy']:.1%} "
      f"right, mean energy of a token {results['energy']:.3f}:\n",
      markdown_table(("group", "baseline", "noise over RLOO's of the size",
                      f"over RLOO's of {SIZES[0]}"), rows)))


if __name__ == "__main__":
  measurement.main(__doc__, "baseline_noise", measure, text, "4 problems")
