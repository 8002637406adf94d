"""Portfolios of a real market, from CSV files by their paths.

  python experiments/papers/portfolio/table.py --prices=closes.csv --start=2020-08-12
  python experiments/papers/portfolio/table.py --prices=BTC=btc.csv,ETH=eth.csv,ADA=ada.csv
  python experiments/papers/portfolio/table.py --prices=closes.csv --headlines=headlines.csv
  python experiments/papers/portfolio/table.py --render    # the page again, from results/

Prints the table. With headlines it is of the days that have some, and --days=FILE writes those
days with the rewards of all verdicts, as the task reads them. --record also writes results/ and
README.md beside this file. market_files.py has the form of the CSV files.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

import numpy as np

from experiments.papers.portfolio import backtest, market_files, rows, scores, simulation, verdicts
from experiments.papers.portfolio.weights import MeanVariance
from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.store.files import write_atomically

HERE = Path(__file__).parent
PARTS = ("closes", "headlines")
HELDOUT = "2022-05-01"  # days from here on are held out of a file of days
MOST_VERIFIED = 8  # assets of which all verdicts are tried, 6,561 a day
MOST_COUNTED = 23  # headlines of an asset and day that its letter tells apart


def iso_day(text: str) -> str:
  """Returns an ISO date as it is, or an empty text; argparse names the flag of another text."""
  return datetime.date.fromisoformat(text).isoformat() if text else ""


def history_before(start: str) -> str:
  """Returns the day from which closes are read, so that the first window is full at `start`."""
  if not start:
    return ""
  return str(np.datetime64(start) - simulation.HISTORY - 1)


def measured(closes: market_files.Closes, headlines: list[market_files.Headline] | None,
             start: str) -> tuple[dict[str, dict], list[verdicts.Day]]:
  """Returns the rows of a market, and with headlines the days of its table.

  Raises:
    ConfigError: too few days.
  """
  rule, prices, sentiment = MeanVariance(), closes.prices, None
  if headlines and len(closes.assets) > MOST_VERIFIED:
    raise ConfigError(f"{len(closes.assets)} assets with headlines: a day has 3^A verdicts, which "
                      f"are all tried. Fix: at most {MOST_VERIFIED} assets.")
  first = simulation.HISTORY + 1
  if start:
    first = max(first, int((np.datetime64(start) - closes.days[0]).astype(int)))
  if headlines:
    compound = scores.vader_scores([headline.title for headline in headlines])
    sentiment = scores.daily_scores(headlines, compound, closes.days, closes.assets)
    covered = np.flatnonzero(sentiment.any(1))
    if len(covered):
      first = max(first, int(covered[0]))
      prices, sentiment = prices[:covered[-1] + 2], sentiment[:covered[-1] + 2]
  if len(prices) - first < 2 * backtest.BLOCK + 1:
    raise ConfigError(f"{len(prices)} days of closes leave {max(len(prices) - first, 0)} after the "
                      f"first window of {first}: at least {2 * backtest.BLOCK + 1} are needed. "
                      "Fix: more days.")
  paths = rows.simple_paths(prices, first, rule)
  days: list[verdicts.Day] = []
  if sentiment is not None:
    more, days = headline_paths(closes, prices, sentiment, first, headlines)
    paths |= more
  named = {closes.assets[0] if name == "first" else name: path for name, path in paths.items()}
  named = {"Bitcoin" if name == "BTC" else name: path for name, path in named.items()}
  return {name: rows.measures(path, paths[rows.TECHNICAL]) for name, path in named.items()}, days


def headline_paths(closes, prices, sentiment, first: int, headlines):
  """Returns the paths that read scores, and the days of the table of all verdicts.

  The oracle takes each day's best verdict, which only the next close tells: a bound, no method.
  """
  rule, returns = MeanVariance(), backtest.next_returns(prices)
  both = simulation.market_of(prices, sentiment, rule)
  alone = simulation.market_of(prices, sentiment, rule, technical=False)
  path = backtest.follow(returns, first, rule, both.choice())
  table, _ = verdicts.reward_table(both, path, returns)
  names = verdicts.all_verdicts(prices.shape[1])
  best = {first + i: names[column] for i, column in enumerate(table.argmax(1))}
  paths = {rows.VADER: backtest.follow(returns, first, rule, alone.choice()), rows.BOTH: path,
           "oracle": backtest.follow(returns, first, rule, both.choice(best))}
  counts = daily_counts(headlines, closes)
  days = []
  for i in range(len(path.net)):
    t = first + i
    prompt = "".join(f"{round(9 * score):+d}" for score in sentiment[t]) + "".join(
        simulation.OUTLETS[min(int(count), MOST_COUNTED)] for count in counts[t])
    day = str(closes.days[t])
    days.append(verdicts.Day(day, prompt, table[i], table[i], heldout=day >= HELDOUT))
  return paths, days


def daily_counts(headlines, closes) -> np.ndarray:
  """Returns the number of headlines that name an asset, [D, A], on the day that they count for."""
  inside = scores.mentions([headline.title for headline in headlines], closes.assets)
  out = np.zeros((len(closes.days), len(closes.assets)), int)
  for headline, asset in zip(headlines, inside, strict=True):
    row = int((np.datetime64(headline.day) - closes.days[0]).astype(int)) + scores.LAG
    if 0 <= row < len(out):
      out[row] += asset
  return out


def write_page(folder: Path) -> None:
  """Writes the tables of the results that are there into the page."""
  page = folder / "README.md"
  for part in PARTS:
    path = folder / "results" / f"{part}.json"
    if not path.exists():
      continue
    results = json.loads(path.read_text())
    head = (f"{results['days'][0]} to {results['days'][1]}, closes of "
            f"{', '.join(results['assets'])}.\n\n")
    replace_part(page, f"table.py, {part}", head + rows.table(results["rows"]))
    if part == "closes":
      replace_part(page, "table.py, published", rows.published_table(results["rows"]))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--prices", help="a CSV file of closes, or ASSET=file pairs")
  parser.add_argument("--headlines", help="a CSV file with the columns time and title")
  parser.add_argument("--start", default="", type=iso_day,
                      help="day of the first weights; default: the earliest")
  parser.add_argument("--end", default="", type=iso_day,
                      help="last day; default: the last one of the files")
  parser.add_argument("--days", type=Path, help="file for the days of the table of verdicts")
  parser.add_argument("--record", action="store_true", help="write results/ and the page")
  parser.add_argument("--render", action="store_true", help="only write the page again")
  parser.add_argument("--out", type=Path, default=HERE, help="folder of the page")
  flags = parser.parse_args()
  if flags.render == bool(flags.prices):
    parser.error("either --prices=<closes> or --render")
  if flags.days and not flags.headlines:
    parser.error("--days without --headlines: there is nothing to verify")
  try:
    if flags.prices:
      closes = market_files.read_closes(flags.prices, history_before(flags.start), flags.end)
      headlines = market_files.read_headlines(flags.headlines) if flags.headlines else None
      market_rows, days = measured(closes, headlines, flags.start)
      span = [days[0].name, days[-1].name] if days else [
          str(closes.days[-1 - next(iter(market_rows.values()))["days"]]), str(closes.days[-1])]
      print(f"{span[0]} to {span[1]}\n{rows.table(market_rows)}")
      if flags.days:
        verdicts.write_days(flags.days, days)
      if flags.record:
        record = {"days": span, "assets": closes.assets, "rows": market_rows}
        path = flags.out / "results" / f"{PARTS[bool(headlines)]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record, indent=1) + "\n")
    if flags.render or flags.record:
      write_page(flags.out)
  except ConfigError as error:
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  main()
