"""Bad rows of a user's CSV files are named by file and line."""

import numpy as np
import pytest

from experiments.papers.portfolio import market_files
from jaxrl_llm.fields import ConfigError

CLOSES = "date,BTC,ETH\n2021-01-01,10,1\n2021-01-02,11,1.5\n2021-01-03,12,2\n"


def written(tmp_path, text: str, name: str = "closes.csv") -> str:
  path = tmp_path / name
  path.write_text(text)
  return str(path)


def test_closes_of_one_file(tmp_path):
  closes = market_files.read_closes(written(tmp_path, CLOSES))
  assert closes.assets == ("BTC", "ETH") and str(closes.days[-1]) == "2021-01-03"
  np.testing.assert_array_equal(closes.prices, [[10, 1], [11, 1.5], [12, 2]])
  some = market_files.read_closes(written(tmp_path, CLOSES), "2021-01-02", "2021-01-03")
  assert len(some.days) == 2


def test_closes_of_a_file_an_asset_are_of_the_days_in_common(tmp_path):
  btc = written(tmp_path, "Date,Ticker,Close\n2021-01-01,BTC,10\n2021-01-02,BTC,11\n2021-01-03,BTC,"
                "12\n", "btc.csv")
  eth = written(tmp_path, "date,close,volume\n2021-01-02 00:00:00,1,9\n2021-01-03,2,9\n", "eth.csv")
  closes = market_files.read_closes(f"BTC={btc},ETH={eth}")
  assert closes.assets == ("BTC", "ETH")
  np.testing.assert_array_equal(closes.prices, [[11, 1], [12, 2]])


@pytest.mark.parametrize("before, after, message", [
    ("2021-01-02,11", "2021-13-02,11", ":3: date = '2021-13-02' is no ISO date"),
    ("2021-01-02,11,1.5", "2021-01-02,11,n/a", ":3: ETH = 'n/a' is no price above 0"),
    ("2021-01-02,11,1.5", "2021-01-02,11", ":3: ETH = None is no price above 0"),
    ("12,2", "-12,nan", ":4: BTC = '-12' is no price above 0"),
    ("2021-01-02,11,1.5\n", "", ":3: 2021-01-03 follows 2021-01-01"),
    ("2021-01-03", "2021-01-02", ":4: 2021-01-02 follows 2021-01-02"),
    ("date,BTC,ETH", "day,BTC,ETH", ":1: columns day, BTC, ETH"),
])
def test_a_bad_row_is_named(tmp_path, before, after, message):
  assert before in CLOSES
  path = written(tmp_path, CLOSES.replace(before, after))
  with pytest.raises(ConfigError) as error:
    market_files.read_closes(path)
  assert f"{path}{message}" in str(error.value) and "Fix:" in str(error.value)


def test_headlines(tmp_path):
  path = written(tmp_path, "time,source,title\n2021-01-01T10:00,A,\"Up, again\"\n"
                 "2021-01-02,B,Down\n")
  first, second = market_files.read_headlines(path)
  assert (str(first.day), first.title, second.title) == ("2021-01-01", "Up, again", "Down")
  with pytest.raises(ConfigError, match="no column title"):
    market_files.read_headlines(written(tmp_path, "time,text\n2021-01-01,x\n"))
