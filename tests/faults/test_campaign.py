"""Every bad input ends in one line that names it, without a traceback, in silence or for ever.

`recount.py` counts them by kind.
"""

import campaign
import pytest
import recount

# Kinds whose commands end at their first check, which others test without a process, too.
NIGHTLY = ("keys", "config files", "data", "pretrained", "commands")
EACH = 8  # of the other kinds, one case of so many is in the slow suite


def marked():
  for kind, table in recount.KINDS.items():
    for index, (name, case) in enumerate(table.items()):
      slow = kind.startswith("reported") or (kind not in NIGHTLY and index % EACH == 0)
      mark = pytest.mark.slow if slow else pytest.mark.nightly
      yield pytest.param(case, id=f"{kind}: {name}", marks=mark)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
  return campaign.sources(tmp_path_factory.mktemp("sources"))


@pytest.mark.parametrize("case", list(marked()))
def test_a_bad_input_ends_in_one_line(case, sources, tmp_path):
  ended = campaign.execute(case, tmp_path, sources)
  assert campaign.verdict(ended, case.texts, case.status) == campaign.CLEAN, ended
