r"""The optimal token baseline's energy beside the gradients that it stands for, on worked answers.

  python experiments/main.py --config=configs/smollm2_chains.py --workdir=runs/chains
  python experiments/smollm2/token_energy.py --workdir=runs/chains
  python experiments/smollm2/token_energy.py

OTB (arXiv 2602.07078) weighs a row at token t with the energy of its tokens up to t, 1 - 2 p + sum
of p^2 of each: the squared norm of d log p / d logits. Here it stands beside the squared norm of
the gradient of log p by all parameters, token by token, and its sum beside the squared norm of the
prefix's gradient. The policy is the run's after its warm start. With --workdir the figures are
measured and stored in token_energy.json; without it the page's part is written from that file.
"""

import contextlib
import functools
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.stats import spearmanr

from experiments.smollm2 import measurement, policies
from jaxrl_llm.objective.advantages.token_baseline import gradient_energy
from jaxrl_llm.ops.token_stats import scaled_logits
from jaxrl_llm.reporting.tables import markdown_table

TOKENS, ENDS = 48, (4, 8, 16, 32, 48)  # first tokens of an answer, and ends of prefixes
BOUNDS = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
RESAMPLES = 2000


def log_probs(model, params, tokens, columns):
  """Returns (log p of the tokens at `columns`, proxies of their energy), both [R, T], of rows
  [R, L] that begin at column 0; columns [R, T].
  """
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  hidden, _ = model.hidden(params, tokens, positions, jnp.ones_like(tokens))
  before = jnp.take_along_axis(hidden, columns[..., None] - 1, 1)
  log_p = jax.nn.log_softmax(scaled_logits(before, model.head(params), 1.0))
  targets = jnp.take_along_axis(tokens, columns, 1)
  chosen = jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0]
  return chosen, gradient_energy(chosen, jnp.exp(2 * log_p).sum(-1))


@functools.partial(jax.jit, static_argnums=0)
def energies(model, params, tokens, columns):
  """Returns (log p [T], proxies [T], squared gradient norms of the tokens [T], and of the sums of
  the first t tokens for each t of ENDS [5]) of a row [L]; columns [T].
  """
  def of_row(params):
    log_p, proxy = log_probs(model, params, tokens[None], columns[None])
    return log_p[0], proxy[0]

  log_p, pullback, proxy = jax.vjp(of_row, params, has_aux=True)
  count = len(columns)
  prefixes = jnp.arange(count) < jnp.array(ENDS)[:, None]
  weights = jnp.concatenate([jnp.eye(count), prefixes.astype(log_p.dtype)])

  def norm(weights):
    return sum(jnp.vdot(x, x) for x in jax.tree.leaves(pullback(weights)[0]))

  norms = lax.map(norm, weights)
  return log_p, proxy, norms[:count], norms[count:]


def measure(workdir: Path, batches: int) -> dict:
  """Returns the figures of the first TOKENS tokens of a row of each problem."""
  run = policies.of_run(workdir, prompts=4)
  parts, group = [], run.cfg.rollout.group_size
  with contextlib.closing(run.sampler):
    params = run.params(0)
    for rollout, _ in run.sample(params, batches):
      lengths = rollout.mask.sum(1)
      for row in range(0, len(lengths), group):
        if lengths[row] >= TOKENS:
          columns = np.flatnonzero(rollout.mask[row])[:TOKENS]
          parts.append(jax.device_get(energies(run.learner.model, params, rollout.tokens[row],
                                               jnp.asarray(columns))))
  return summary(*map(np.stack, zip(*parts, strict=True)))


def summary(log_p: np.ndarray, proxy: np.ndarray, true: np.ndarray, prefix: np.ndarray) -> dict:
  """Returns rank correlations with intervals of 95 % over rows, the ratio of true to proxy by
  probability, and prefixes.

  Args:
    log_p, proxy, true: [R, T].
    prefix: [R, len(ENDS)], squared norms of prefixes' gradients.
  """
  p, buckets = np.exp(log_p), []
  for low, high in itertools.pairwise(BOUNDS):
    inside = (p >= low) & ((p < high) | (high == 1.0))
    count = int(inside.sum())
    buckets.append({"low": low, "high": high, "tokens": count,
                    "share_true": float(true[inside].sum() / true.sum()),
                    "share_proxy": float(proxy[inside].sum() / proxy.sum())})
  ends = np.array(ENDS) - 1
  sums = {"proxy": np.cumsum(proxy, 1)[:, ends], "true": np.cumsum(true, 1)[:, ends]}
  return {
      "rows": len(p), "tokens": p.size, "correlation": correlation(proxy, true),
      "pearson_log": float(np.corrcoef(np.log(proxy + 1e-12).ravel(),
                                       np.log(true + 1e-12).ravel())[0, 1]),
      "buckets": buckets,
      "prefixes": {str(t): {
          "over_sum": float(np.median(prefix[:, i] / sums["true"][:, i])),
          "correlation": correlation(sums["proxy"][:, i:i + 1], prefix[:, i:i + 1])}
                   for i, t in enumerate(ENDS)}}


def correlation(x: np.ndarray, y: np.ndarray) -> dict:
  """Returns Spearman's rank correlation of [R, T] numbers, resampled by rows for the interval."""
  rng = np.random.default_rng(0)
  drawn = rng.integers(0, len(x), (RESAMPLES, len(x)))
  values = [spearmanr(x[rows].ravel(), y[rows].ravel()).statistic for rows in drawn]
  low, high = np.nanpercentile(values, (2.5, 97.5))
  return {"value": float(spearmanr(x.ravel(), y.ravel()).statistic), "low": float(low),
          "high": float(high)}


def _interval(of: dict) -> str:
  return f"{of['value']:.2f} ({of['low']:.2f} to {of['high']:.2f})"


def text(results: dict) -> str:
  """Returns the tables of the page."""
  rows = [(f"{of['low']:g} to {of['high']:g}", of["tokens"], f"{of['share_proxy']:.1%}",
           f"{of['share_true']:.1%}") for of in results["buckets"]]
  prefixes = [(t, f"{of['over_sum']:.2f}", _interval(of["correlation"]))
              for t, of in results["prefixes"].items()]
  return "\n".join((
      f"{results['tokens']} tokens of {results['rows']} answers: rank correlation of a token's "
      f"proxy with the squared norm of its gradient {_interval(results['correlation'])}; of their "
      f"logarithms the linear one is {results['pearson_log']:.2f}. Shares of the energy:\n",
      markdown_table(("probability", "tokens", "of the proxies", "of the gradients"), rows),
      "Prefixes: squared norm of the prefix's gradient over the sum of its tokens' (median; 1 if "
      "orthogonal), and its rank correlation over rows with the sum of proxies:\n",
      markdown_table(("first tokens", "norm over sum", "correlation"), prefixes)))


if __name__ == "__main__":
  measurement.main(__doc__, "token_energy", measure, text, "4 problems")
