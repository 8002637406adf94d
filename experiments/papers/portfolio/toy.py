"""Does a policy learn which headlines to believe? Simulated markets whose outlets are known.

  python experiments/papers/portfolio/toy.py           # the seeds that are missing, then the tables
  python experiments/papers/portfolio/toy.py --render  # the tables again, from the results
  python experiments/papers/portfolio/toy.py --seeds=7 --out=runs/portfolio

A seed is a market and the samples of training; the policy is a table (outlet_policy.py). Writes
results/seed<n>.json and two tables of README.md beside this file.
"""

import time
from pathlib import Path

import numpy as np

from experiments.papers.portfolio import backtest, config, outlet_policy, rows, simulation, verdicts
from experiments.papers.portfolio.weights import MeanVariance
from experiments.tables_lib import seed_results
from experiments.tables_lib.compare import interval
from experiments.tables_lib.page_parts import narrow_tables, replace_part
from jaxrl_llm.config import from_dict

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
SHARES = ("informative_kept", "noise_zeroed", "adversarial_flipped")
METHODS = ("grpo", "cispo", "gspo")
HEADER = ("verdicts", "regret, % of the value a day", "informative kept, %", "noise zeroed, %",
          "adversarial flipped, %")


def config_of(seed: int):
  """Returns the configuration of a seed."""
  values = config.get_config()
  values.seed = values.task.market = seed
  return values


def baselines(days: list[verdicts.Day]) -> dict[str, dict]:
  """Returns the means of regret and SHARES of verdicts that need no policy."""
  table = np.array([day.expected for day in days])
  assets = days[0].assets
  planted = ["".join(simulation.RIGHT[kind] for kind in day.kinds) for day in days]
  choices = {"every score kept": ["K" * assets] * len(days),
             "every score zeroed": ["Z" * assets] * len(days), "oracle: by the kind": planted}
  uniform = 100 * float((table.max(1) - table.mean(1)).mean())
  return {"evenly drawn (before)": {"regret": uniform, **dict.fromkeys(SHARES, 1 / 3)},
          **{name: means(days, verdict) for name, verdict in choices.items()}}


def means(days: list[verdicts.Day], verdict: list[str]) -> dict[str, float]:
  """Returns the means of regret, in percent of the value, and of SHARES of a verdict a day."""
  table = np.array([day.expected for day in days])
  chosen = np.array([verdicts.column_of(text, days[0].assets) for text in verdict])
  letters, kinds = "".join(verdict), "".join(day.kinds for day in days)
  shares = {share: float(np.mean([letter == simulation.RIGHT[kind]
                                  for letter, place in zip(letters, kinds, strict=True)
                                  if place == kind]))
            for share, kind in zip(SHARES, simulation.KINDS, strict=True)}
  return {"regret": 100 * float(verdicts.regret(table, chosen).mean()), **shares}


def portfolios(cfg, days: list[verdicts.Day], texts: list[str]) -> dict[str, dict]:
  """Returns the measures of each portfolio on the held-out days, followed day by day.

  The oracle knows the outlets' kinds.
  """
  drawn = simulation.simulate(cfg.market, cfg.days + cfg.heldout_days, cfg.informative,
                              cfg.adversarial, cfg.effect, cfg.volatility)
  rule, prices = MeanVariance(), drawn.closes.prices
  first = len(prices) - 1 - len(days)
  returns, market = backtest.next_returns(prices), simulation.market_of(prices, drawn.scores, rule)
  learnt = {first + i: text for i, text in enumerate(texts)}
  oracle = {first + i: "".join(simulation.RIGHT[kind] for kind in day.kinds)
            for i, day in enumerate(days)}
  paths = rows.simple_paths(prices, first, rule)
  for name, by_day in (("scores as they are", None), ("learnt", learnt), ("oracle", oracle)):
    paths[name] = backtest.follow(returns, first, rule, market.choice(by_day))
  return {name: rows.measures(path, paths[rows.TECHNICAL]) for name, path in paths.items()}


def measure(seed: int) -> dict:
  """Returns what the page shows of a seed."""
  cfg = from_dict(config_of(seed)).task
  every_day = simulation.simulated_days(
      cfg.market, cfg.days, cfg.heldout_days, cfg.informative, cfg.adversarial, cfg.effect,
      cfg.volatility)
  heldout = [day for day in every_day if day.heldout]
  trained = outlet_policy.Days.of([day for day in every_day if not day.heldout])
  learnt, seconds = {}, {}
  for text in METHODS:
    begin = time.perf_counter()
    logits, _ = outlet_policy.train(trained, text, seed)
    learnt[text] = outlet_policy.greedy(logits, outlet_policy.Days.of(heldout))
    seconds[text] = time.perf_counter() - begin
  return {"policies": {text: means(heldout, verdict) for text, verdict in learnt.items()},
          "baselines": baselines(heldout), "portfolios": portfolios(cfg, heldout, learnt["grpo"]),
          "seconds": seconds}


def by_seed(values: list[float]) -> str:
  """Returns the mean with the value of each seed; only the mean where they are equal."""
  each = [f"{value:.0f}" for value in values]
  return each[0] if len(set(each)) == 1 else f"{np.mean(values):.0f} ({', '.join(each)})"


def write_tables(results: list[dict], page: Path) -> None:
  """Writes both tables into the page."""
  lines = []
  by_name = {**{name: [one["baselines"][name] for one in results]
                for name in results[0]["baselines"]},
             **{f"learnt, `{text}`": [one["policies"][text] for one in results]
                for text in METHODS}}
  for name, rows_of_seeds in by_name.items():
    lines.append((name, interval(np.array([row["regret"] for row in rows_of_seeds])),
                  *(by_seed([100 * row[share] for row in rows_of_seeds]) for share in SHARES)))
  replace_part(page, "toy.py, regret", narrow_tables(HEADER, lines))
  lines = []
  for name in results[0]["portfolios"]:
    row = [one["portfolios"][name] for one in results]
    gaps = "; ".join(f"{one['difference']:+.1f} ({one['interval'][0]:+.1f} to "
                     f"{one['interval'][1]:+.1f})" for one in row)
    lines.append(("one asset" if name == "first" else name,
                  *(interval(np.array([one[field] for one in row]))
                    for field in ("cumulative", "sharpe_365")),
                  interval(100 * np.array([one["drawdown"] for one in row])),
                  "" if name == rows.TECHNICAL else gaps))
  replace_part(page, "toy.py, portfolios", narrow_tables(
      ("portfolio", "cumulative return", "Sharpe, 365 days", "largest fall, %",
       "Sharpe - technical, by seed"), lines))


if __name__ == "__main__":
  seed_results.main(__doc__, HERE, SEEDS, measure, write_tables)
