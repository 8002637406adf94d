"""The files that take longest, as a table.

  pytest --junitxml=quick.xml; pytest -m slow --junitxml=slow.xml
  python tests/profile_table.py quick.xml slow.xml
"""

import collections
import sys
import xml.etree.ElementTree
from pathlib import Path

ROWS = 20


def seconds(path: Path) -> collections.Counter:
  """Returns the seconds of each file of a session, set-up included, by its dotted name."""
  spent: collections.Counter = collections.Counter()
  for case in xml.etree.ElementTree.parse(path).iter("testcase"):
    if case.get("classname"):  # not an error outside of a test
      spent[case.get("classname")] += float(case.get("time"))
  return spent


def table(sessions: dict[str, collections.Counter], rows: int = ROWS) -> str:
  """Markdown: the files with the largest sum over sessions, and the sum of all files."""
  total = sum(sessions.values(), collections.Counter())
  lines = [f"| file | {' | '.join(sessions)} |", f"|---|{'--:|' * len(sessions)}"]
  for name, _ in total.most_common(rows):
    lines.append(f"| {name} | {' | '.join(f'{spent[name]:.0f}' for spent in sessions.values())} |")
  sums = " | ".join(f"{spent.total():.0f}" for spent in sessions.values())
  return "\n".join([*lines, f"| all files | {sums} |"])


if __name__ == "__main__":
  print(table({Path(path).stem: seconds(Path(path)) for path in sys.argv[1:]}))
