"""A market with one headline an asset and day, of which some tell the truth and some its opposite.

  prompt   +3-1-2+1+3bqdwk   tone and strength of each asset's headline, and their outlets

An outlet is informative, noise or adversarial, and stays so: the next day's return of its asset
moves with the score, does not, or moves against it. Only the outlet's letter tells. Own design.
"""

import dataclasses
import functools

import numpy as np

from experiments.papers.portfolio import backtest, forecasts, indicators, verdicts
from experiments.papers.portfolio.market_files import Closes
from experiments.papers.portfolio.weights import MeanVariance

ASSETS = 5
OUTLETS = "abcdefghijklmnopqrstuvwx"
INFORMATIVE, NOISE, ADVERSARIAL = KINDS = "ina"
SIGNS = {INFORMATIVE: 1.0, NOISE: 0.0, ADVERSARIAL: -1.0}
RIGHT = {INFORMATIVE: "K", NOISE: "Z", ADVERSARIAL: "F"}  # the verdict that leaves the true part
STRENGTHS = 3
HISTORY = forecasts.WINDOW + indicators.PERIOD  # days before the first weights
COMMON = 0.02  # standard deviation of the return that all assets share


@dataclasses.dataclass(frozen=True)
class Simulated:
  """A simulated market.

  Attributes:
    closes: of D days.
    scores: [D, A] in [-1, 1], known at the close of their day.
    true_means: [D - 1, A], of the return from each close to the next.
    outlets: [D, A], indices into OUTLETS.
    kinds: of each outlet, one letter of KINDS.
  """

  closes: Closes
  scores: np.ndarray
  true_means: np.ndarray
  outlets: np.ndarray
  kinds: str


def kinds_of_outlets(rng: np.random.Generator, informative: float, adversarial: float) -> str:
  """Returns a kind for each outlet, in these shares; the other outlets are noise."""
  count = len(OUTLETS)
  first, last = round(informative * count), round(adversarial * count)
  letters = list(INFORMATIVE * first + NOISE * (count - first - last) + ADVERSARIAL * last)
  rng.shuffle(letters)
  return "".join(letters)


def simulate(seed: int, days: int, informative: float, adversarial: float, effect: float,
             volatility: float) -> Simulated:
  """Draws a market of HISTORY + `days` + 1 days.

    return_(t+1) = sign(kind) effect score_t + COMMON z_(t+1) + volatility e_(t+1)

  Args:
    effect: return that a score of 1 stands for.
    volatility: standard deviation of an asset's own return.
  """
  rng = np.random.default_rng((seed, 62))
  total = HISTORY + days + 1
  kinds = kinds_of_outlets(rng, informative, adversarial)
  outlets = rng.integers(0, len(OUTLETS), (total, ASSETS))
  tone = rng.choice([-1, 1], (total, ASSETS)) * rng.integers(1, STRENGTHS + 1, (total, ASSETS))
  scores = tone / STRENGTHS
  means = effect * scores * np.vectorize(SIGNS.get)(np.array(list(kinds))[outlets])
  noise = COMMON * rng.normal(size=(total, 1)) + volatility * rng.normal(size=(total, ASSETS))
  returns = np.maximum(means[:-1] + noise[:-1], -0.5)
  prices = 100 * np.vstack([np.ones((1, ASSETS)), np.cumprod(1 + returns, 0)])
  dates = np.datetime64("2000-01-01") + np.arange(total)
  closes = Closes(dates, tuple(f"C{i}" for i in range(1, ASSETS + 1)), prices)
  return Simulated(closes, scores, means[:-1], outlets, kinds)


def prompt_of(outlets: str, scores: np.ndarray) -> str:
  """Returns the prompt of a day: tone and strength of each asset's headline, and their outlets.

  The outlets stand together, so that each is as far from its verdict as the others.
  """
  return "".join(f"{score:+d}" for score in np.rint(scores * STRENGTHS).astype(int)) + outlets


def market_of(prices: np.ndarray, scores: np.ndarray, rule: MeanVariance,
              technical: bool = True) -> verdicts.Market:
  """Returns the market of closes [D, A] and scores [D, A], with the technical signals before."""
  before = indicators.technical_signals(prices) if technical else np.zeros((*prices.shape, 0))
  signals = np.concatenate([before, scores[..., None]], -1)
  return verdicts.Market(forecasts.rolling_forecast(prices, signals), signals, rule)


def unverified(market: verdicts.Market, returns: np.ndarray) -> backtest.Path:
  """Returns the path with the scores as they are."""
  return backtest.follow(returns, market.forecast.first, market.rule, market.choice())


@functools.lru_cache(4)
def simulated_days(seed: int, days: int, heldout: int, informative: float, adversarial: float,
                   effect: float, volatility: float) -> tuple[verdicts.Day, ...]:
  """Returns the days of a simulated market with their rewards; the last `heldout` are held out."""
  drawn = simulate(seed, days + heldout, informative, adversarial, effect, volatility)
  market = market_of(drawn.closes.prices, drawn.scores, MeanVariance())
  returns = backtest.next_returns(drawn.closes.prices)
  path = unverified(market, returns)
  rewards, expected = verdicts.reward_table(market, path, returns, drawn.true_means)
  out = []
  for i in range(len(path.net)):
    t = path.first + i
    letters = "".join(OUTLETS[outlet] for outlet in drawn.outlets[t])
    out.append(verdicts.Day(
        f"{seed}/{t}", prompt_of(letters, drawn.scores[t]), rewards[i], expected[i],
        "".join(drawn.kinds[outlet] for outlet in drawn.outlets[t]),
        heldout=i >= len(path.net) - heldout))
  return tuple(out)
