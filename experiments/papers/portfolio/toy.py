"""Does a policy learn which headlines to believe? Simulated markets whose outlets are known.

  python experiments/papers/portfolio/toy.py           # the seeds that are missing, then the tables
  python experiments/papers/portfolio/toy.py --render  # the tables again, from the results
  python experiments/papers/portfolio/toy.py --seeds=7 --out=runs/portfolio

A seed is a market, a network and its samples. Writes results/seed<n>.json and two tables of
README.md beside this file.
"""

import contextlib
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.papers.portfolio import backtest, config, rows, simulation, verdicts
from experiments.papers.portfolio.weights import MeanVariance
from experiments.tables_lib import seed_results
from experiments.tables_lib.benchmark import loading
from experiments.tables_lib.compare import interval
from experiments.tables_lib.page_parts import narrow_tables, replace_part
from jaxrl_llm.config import from_dict
from jaxrl_llm.reporting.reader import read_run
from jaxrl_llm.runs import evaluate, trainer
from jaxrl_llm.wiring import evaluation_sets, saved

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
SHARES = ("informative_kept", "noise_zeroed", "adversarial_flipped")
MEASURED = ("regret", *SHARES)
HEADER = ("verdicts", "regret, % of the value a day", "informative kept, %", "noise zeroed, %",
          "adversarial flipped, %")


def config_of(seed: int):
  """Returns the configuration of a seed."""
  values = config.get_config()
  values.seed = values.task.market = seed
  return values


def train(seed: int, folder: Path) -> tuple[dict, list[str]]:
  """Trains a policy; returns the means of MEASURED before and after, and the last verdicts.

  The verdicts are of all held-out days in their order.
  """
  trainer.run(from_dict(config_of(seed)), folder)
  run = read_run(folder)
  curves = {name: run.series(f"eval/component/{name}")[1] for name in MEASURED}
  built, params = loading.load_run(folder, saved.choose(folder, "latest"), plugins="run")
  cfg, task, _, sampler = built
  with contextlib.closing(sampler):
    heldout, *_ = evaluation_sets.make_sets(cfg, task)
    texts = evaluate.evaluate(heldout, sampler, params).texts
  return {"before": {name: float(curve[0]) for name, curve in curves.items()},
          "after": {name: float(curve[-1]) for name, curve in curves.items()}}, texts


def baselines(days: list[verdicts.Day]) -> dict[str, dict]:
  """Returns the means of MEASURED of verdicts that need no policy, in percent of a day's value."""
  table = np.array([day.expected for day in days])
  assets = days[0].assets
  planted = ["".join(simulation.RIGHT[kind] for kind in day.kinds) for day in days]
  choices = {"every score kept": ["K" * assets] * len(days),
             "every score zeroed": ["Z" * assets] * len(days), "oracle: by the kind": planted}
  out = {}
  for name, verdict in choices.items():
    columns = np.array([verdicts.column_of(text, assets) for text in verdict])
    letters, kinds = "".join(verdict), "".join(day.kinds for day in days)
    shares = {share: float(np.mean([letter == simulation.RIGHT[kind]
                                    for letter, place in zip(letters, kinds, strict=True)
                                    if place == kind]))
              for share, kind in zip(SHARES, simulation.KINDS, strict=True)}
    out[name] = {"regret": 100 * float(verdicts.regret(table, columns).mean()), **shares}
  uniform = 100 * float((table.max(1) - table.mean(1)).mean())
  out["at random"] = {"regret": uniform, **dict.fromkeys(SHARES, 1 / 3)}
  return out


def portfolios(cfg, days: list[verdicts.Day], texts: list[str]) -> dict[str, dict]:
  """Returns the measures of each portfolio on the held-out days, followed day by day.

  The oracle knows the outlets' kinds. A completion that is no verdict keeps every score.
  """
  drawn = simulation.simulate(cfg.market, cfg.days + cfg.heldout_days, cfg.informative,
                              cfg.adversarial, cfg.effect, cfg.volatility)
  rule, prices = MeanVariance(), drawn.closes.prices
  first, assets = len(prices) - 1 - len(days), prices.shape[1]
  returns, market = backtest.next_returns(prices), simulation.market_of(prices, drawn.scores, rule)
  learnt = {first + i: text for i, text in enumerate(texts)
            if verdicts.column_of(text, assets) is not None}
  oracle = {first + i: "".join(simulation.RIGHT[kind] for kind in day.kinds)
            for i, day in enumerate(days)}
  paths = rows.simple_paths(prices, first, rule)
  for name, by_day in (("scores as they are", None), ("learnt", learnt), ("oracle", oracle)):
    paths[name] = backtest.follow(returns, first, rule, market.choice(by_day))
  return {name: rows.measures(path, paths[rows.TECHNICAL]) for name, path in paths.items()}


def measure(seed: int) -> dict:
  """Returns what the page shows of a seed."""
  begin = time.perf_counter()
  cfg = from_dict(config_of(seed)).task
  days = [day for day in simulation.simulated_days(
      cfg.market, cfg.days, cfg.heldout_days, cfg.informative, cfg.adversarial, cfg.effect,
      cfg.volatility) if day.heldout]
  with tempfile.TemporaryDirectory() as folder:
    policy, texts = train(seed, Path(folder) / "run")
  return {"policy": policy, "baselines": baselines(days), "verdicts": texts,
          "portfolios": portfolios(cfg, days, texts), "seconds": time.perf_counter() - begin}


def write_tables(results: list[dict], page: Path) -> None:
  """Writes both tables into the page."""
  lines = []
  by_name = {**{name: [one["baselines"][name] for one in results]
                for name in results[0]["baselines"]},
             "policy, before": [one["policy"]["before"] for one in results],
             "policy, after": [one["policy"]["after"] for one in results]}
  for name, means in by_name.items():
    lines.append((name, interval(np.array([mean["regret"] for mean in means])),
                  *(interval(100 * np.array([mean[share] for mean in means]))
                    for share in SHARES)))
  replace_part(page, "toy.py, regret", narrow_tables(HEADER, lines))
  lines = []
  for name in results[0]["portfolios"]:
    row = [one["portfolios"][name] for one in results]
    gaps = "; ".join(f"{one['difference']:+.1f} ({one['interval'][0]:+.1f} to "
                     f"{one['interval'][1]:+.1f})" for one in row)
    lines.append((name, *(interval(np.array([one[field] for one in row]))
                          for field in ("cumulative", "sharpe_365")),
                  interval(100 * np.array([one["drawdown"] for one in row])),
                  "" if name == rows.TECHNICAL else gaps))
  replace_part(page, "toy.py, portfolios", narrow_tables(
      ("portfolio", "cumulative return", "Sharpe, 365 days", "largest fall, %",
       "Sharpe - technical, by seed"), lines))


if __name__ == "__main__":
  seed_results.main(__doc__, HERE, SEEDS, measure, write_tables)
