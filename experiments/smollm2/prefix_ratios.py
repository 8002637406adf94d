r"""How far log-ratios add up along a completion of SmolLM2, between policies some updates apart.

  python experiments/main.py --config=configs/smollm2_chains.py --workdir=runs/chains \
      --config.checkpoint.every=4 --config.checkpoint.keep=11
  python experiments/smollm2/prefix_ratios.py --workdir=runs/chains
  python experiments/smollm2/prefix_ratios.py --workdir=runs/chains --out=runs/again
  python experiments/smollm2/prefix_ratios.py

The policy of iteration 0, after the warm start, samples worked answers (some 57 tokens); later
policies score them. L_t is the sum of the first t log-ratios. With --workdir the figures are
measured and stored in prefix_ratios.json; without it the page's part and prefix_ratios.png are
drawn from that file. With --out all of that goes there, and what differs from the committed figures
is printed. Dropped: tokens to whose log-prob an estimator gives no gradient, the mean of
both signs of the advantage.
"""

import contextlib
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

from experiments.smollm2 import measurement, policies
from experiments.tables_lib.page_parts import narrow_tables
from jaxrl_llm import config as config_lib
from jaxrl_llm import presets
from jaxrl_llm.objective import estimators
from jaxrl_llm.reporting.tables import MISSING, markdown_table
from jaxrl_llm.store import checkpoints
from jaxrl_llm.types import Sampling

PRESETS = ("grpo", "dapo", "gspo", "ctpo", "minpro")
POSITIONS = (1, 2, 4, 8, 16, 32, 48)
AGES = (1, 2, 4, 8, 16, 32)
FEWEST = 20  # rows that a position has more of
RESAMPLES = 1000


def log_ratios(workdir: Path, batches: int) -> tuple[dict[int, np.ndarray], np.ndarray]:
  """Returns (log-ratios [rows, L] of each age against the policy that sampled, mask [rows, L])."""
  run, out = policies.of_run(workdir), {}
  with contextlib.closing(run.sampler):
    rollouts = [rollout for rollout, _ in run.sample(run.params(0), batches)]
  for age in [0, *(age for age in AGES if age in checkpoints.iterations(workdir))]:
    params = run.params(age)
    scored = [jax.device_get(run.learner.scoring.score_heldout(params, rollout, Sampling.of(1.0)))
              for rollout in rollouts]
    out[age] = np.concatenate([stats.log_probs for stats in scored]).astype(np.float64)
  start = out.pop(0)
  mask = np.concatenate([rollout.mask for rollout in rollouts])
  return {age: np.where(mask, log_p - start, 0) for age, log_p in out.items()}, mask


def aligned(x: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the entries of each row's sampled tokens from column 0 on, and where there are any."""
  order = np.argsort(~mask, axis=1, kind="stable")
  return np.take_along_axis(x, order, 1), np.take_along_axis(mask, order, 1)


def slope(sums: np.ndarray) -> float | None:
  """Returns the slope of log deviation over log t from t = 4 on; None where too few rows go so far,
  or do not differ.

  Args:
    sums: L_t of each row at POSITIONS, [rows, POSITIONS]; NaN past its end.
  """
  points = [(t, np.nanstd(at, ddof=1)) for t, at in zip(POSITIONS, sums.T, strict=True)
            if t >= 4 and np.sum(~np.isnan(at)) > FEWEST]
  if len(points) < 2 or not all(deviation for _, deviation in points):
    return None
  return float(np.polyfit(*np.log(points).T, 1)[0])


def slope_interval(sums: np.ndarray) -> list[float] | None:
  """Returns the 95 % interval of `slope` by resampled rows; None where it has none."""
  rng = np.random.default_rng(0)
  slopes = [slope(sums[rng.integers(len(sums), size=len(sums))]) for _ in range(RESAMPLES)]
  if None in slopes:
    return None
  return [float(x) for x in np.quantile(slopes, (0.025, 0.975))]


def spread(log_ratio: np.ndarray, mask: np.ndarray) -> dict:
  """Returns, by position, mean and standard deviation over rows of L_t, and the slope of the
  deviation's logarithm over that of t with its interval; own derivation: 1/2 for independent
  log-ratios.
  """
  x, live = aligned(log_ratio, mask)
  columns = np.array([t - 1 for t in POSITIONS if t <= x.shape[1]])
  sums = np.full((len(x), len(POSITIONS)), np.nan)
  sums[:, :len(columns)] = np.where(live, np.cumsum(x, 1), np.nan)[:, columns]
  rows = {}
  for t, at in zip(POSITIONS, sums.T, strict=True):
    live_rows = ~np.isnan(at)
    if live_rows.sum() > FEWEST:
      tokens = x[live_rows]
      rows[t] = {"rows": int(live_rows.sum()), "mean": float(at[live_rows].mean()),
                 "deviation": float(at[live_rows].std(ddof=1)),
                 "minimum": float(tokens[:, :t].min(1).mean()),
                 "token": float(tokens[:, t - 1].std(ddof=1))}
  tokens = log_ratio[mask]
  return {"positions": rows, "slope": slope(sums), "slope_interval": slope_interval(sums),
          "absolute": float(np.abs(tokens).mean()),
          "outside": float((np.abs(np.expm1(tokens)) > 0.2).mean())}


def dropped(preset: str, log_ratio: np.ndarray, mask: np.ndarray) -> dict[int, float]:
  """Returns the share of tokens without gradient at POSITIONS under an estimator."""
  loss = config_lib.from_dict(presets.apply(config_lib.base_config(), preset)).loss
  estimator = estimators.get_estimator(loss.estimator.name)
  shares = []
  for sign in (1.0, -1.0):
    advantages = jnp.where(mask, sign, 0.0)

    def total(log_probs, advantages=advantages):
      out = estimator(log_probs, jnp.zeros_like(log_probs), advantages, jnp.asarray(mask),
                      loss.estimator)
      return jnp.sum(out.per_token_loss)

    gradient = np.asarray(jax.grad(total)(jnp.asarray(log_ratio, jnp.float32)))
    zero, live = aligned(gradient == 0, mask)
    shares.append([zero[live[:, t - 1], t - 1].mean() if live[:, t - 1].any() else np.nan
                   for t in POSITIONS])
  return {t: float(x) for t, x in zip(POSITIONS, np.mean(shares, 0), strict=True)}


def measure(workdir: Path, batches: int) -> dict:
  """Returns the figures of each age."""
  ratios, mask = log_ratios(workdir, batches)
  return {str(age): spread(x, mask) | {
      "dropped": {preset: dropped(preset, x, mask) for preset in PRESETS}}
          for age, x in ratios.items()}


def text(results: dict) -> str:
  """Returns the tables of the page."""
  heads = [f"t = {t}" for t in POSITIONS]
  spreads, shares = [], []
  for age, of in results.items():
    at = [of["positions"].get(str(t)) for t in POSITIONS]
    slope_text = MISSING if of["slope"] is None else f"{of['slope']:.2f}"
    if of.get("slope_interval"):
      slope_text += " ({:.2f} to {:.2f})".format(*of["slope_interval"])
    spreads.append((age, f"{of['absolute']:.3f}", f"{of['outside']:.1%}", slope_text, *(
        MISSING if x is None else f"{x['mean']:+.2f} ± {x['deviation']:.2f}" for x in at)))
    shares += [(age, preset, *(f"{dropped[str(t)]:.1%}" for t in POSITIONS))
               for preset, dropped in of["dropped"].items()]
  return "\n".join((
      "Mean and standard deviation over rows of L_t:\n",
      narrow_tables(("updates apart", "mean abs log r", "outside 1 ± 0.2", "slope", *heads),
                    spreads),
      "Tokens without gradient, by position:\n",
      markdown_table(("updates apart", "preset", *heads), shares)))


def draw(results: dict, path: Path) -> None:
  """Draws the deviation of L_t over t for each age, beside lines of slope 1/2."""
  matplotlib.use("Agg")
  from matplotlib import pyplot as plt

  figure, axes = plt.subplots(figsize=(6, 3.6))
  for age, of in results.items():
    points = sorted((int(t), row["deviation"]) for t, row in of["positions"].items())
    axes.plot(*zip(*points, strict=True), marker="o", label=f"{age} updates apart")
    t, first = np.array([point[0] for point in points]), points[2][1]
    axes.plot(t, first * np.sqrt(t / 4), "--", color="0.7", linewidth=0.8)
  axes.set(xscale="log", yscale="log", xlabel="token t of the completion",
           ylabel="standard deviation of L_t over rows")
  axes.legend(fontsize=8)
  figure.tight_layout()
  figure.savefig(path, dpi=110)


if __name__ == "__main__":
  measurement.main(__doc__, "prefix_ratios", measure, text, "64 completions", draw)
