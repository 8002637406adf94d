"""Sentiment of an asset's headlines, day by day."""

import re
from collections.abc import Sequence

import numpy as np

from experiments.papers.portfolio.market_files import Headline
from jaxrl_llm.fields import ConfigError

# Words that name an asset; one that is not listed is named by its ticker.
NAMES = {"BTC": ("bitcoin", "btc"), "ETH": ("ethereum", "ether", "eth"), "ADA": ("cardano", "ada"),
         "BNB": ("binance", "bnb"), "XRP": ("ripple", "xrp")}
LAG = 1  # days; the zone of the time stamps is unknown, so that a day's headlines wait for the next


def vader_scores(titles: Sequence[str]) -> np.ndarray:
  """Returns VADER's compound score in [-1, 1] of each title.

  Raises:
    ConfigError: vaderSentiment is not installed.
  """
  try:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
  except ImportError as error:
    raise ConfigError("headlines are scored by vaderSentiment, which is not installed. "
                      "Fix: pip install -e '.[portfolio]'") from error
  analyzer = SentimentIntensityAnalyzer()
  return np.array([analyzer.polarity_scores(title)["compound"] for title in titles])


def mentions(titles: Sequence[str], assets: Sequence[str]) -> np.ndarray:
  """Returns whether each title names each asset, [N, A] bool."""
  words = [re.compile(rf"\b({'|'.join(NAMES.get(asset, (asset.lower(),)))})\b", re.IGNORECASE)
           for asset in assets]
  return np.array([[bool(word.search(title)) for word in words] for title in titles], bool
                  ).reshape(len(titles), len(assets))


def daily_scores(headlines: Sequence[Headline], scores: np.ndarray, days: np.ndarray,
                 assets: Sequence[str], lag: int = LAG) -> np.ndarray:
  """Returns the mean score of the headlines that name an asset, [D, A]; 0 on a day without one.

  Args:
    scores: of the headlines.
    days: [D] datetime64[D], consecutive.
    lag: days after which a headline counts as known; that of day t is in row t + lag.
  """
  total, count = np.zeros((2, len(days), len(assets)))
  inside = mentions([headline.title for headline in headlines], assets)
  for headline, score, asset in zip(headlines, scores, inside, strict=True):
    row = (np.datetime64(headline.day) - days[0]).astype(int) + lag
    if 0 <= row < len(days):
      total[row] += score * asset
      count[row] += asset
  return total / np.maximum(count, 1)
