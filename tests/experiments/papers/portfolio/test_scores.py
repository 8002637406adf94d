"""Scores of headlines: which asset they name, and on which day they count."""

import datetime

import numpy as np
import pytest

from experiments.papers.portfolio import scores
from experiments.papers.portfolio.market_files import Headline

DAYS = np.datetime64("2022-01-01") + np.arange(4)


def headline(day: int, title: str) -> Headline:
  return Headline(datetime.date(2022, 1, day), title)


def test_a_title_names_assets_by_word():
  inside = scores.mentions(["Bitcoin and ETH rise", "Canada adapts", "$XRP, Ripple", "DOGE"],
                           ("BTC", "ETH", "ADA", "XRP", "DOGE"))
  np.testing.assert_array_equal(inside, [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 1, 0],
                                         [0, 0, 0, 0, 1]])
  assert scores.mentions([], ("BTC",)).shape == (0, 1)


def test_a_day_counts_for_the_next():
  lines = [headline(1, "btc"), headline(1, "bitcoin, eth"), headline(4, "btc")]
  daily = scores.daily_scores(lines, np.array([0.2, 0.6, 0.9]), DAYS, ("BTC", "ETH"))
  np.testing.assert_allclose(daily, [[0, 0], [0.4, 0.6], [0, 0], [0, 0]])
  same_day = scores.daily_scores(lines, np.array([0.2, 0.6, 0.9]), DAYS, ("BTC", "ETH"), lag=0)
  assert same_day[0, 0] == pytest.approx(0.4), "without the lag a day's own headlines count"
