"""Writes the lists of tables: tables.md, by main question; papers/README.md, the toys of one paper
each; and README.md's answer to "which ratio?".

  python experiments/matrix.py

Every number comes from the committed results.
"""

import dataclasses
import os

import paper_rows
import question_rows
import ratio_rows
from table_row import HERE, Row, filled, folder

from experiments.tables_lib import sweep_results
from experiments.tables_lib.page_parts import replace_part


@dataclasses.dataclass(frozen=True)
class Question:
  """A main question: a section of tables.md.

  Attributes:
    tables: folders, the one whose page answers first.
  """

  title: str
  tables: tuple[str, ...]


QUESTIONS = (
    Question("What does a ratio do to the gradient?", ("exact", "atlas")),
    Question("Which ratio holds on old rollouts?",
             ("staleness", "staleness_long", "staleness_lengths", "arena", "smollm2/old_rollouts",
              "in_flight")),
    Question("Which baseline?", ("baselines",)),
    Question("Does credit land on the token that decides?", ("credit", "distillation")),
    Question("Which weighting or reward, where lengths differ?",
             ("aggregation", "smollm2/lengths")),
    Question("Do the sampler's numerics matter?", ("mismatch",)),
    Question("And with a tool?", ("tools",)),
    Question("Earlier tables, on a task where RL decides one token", ("position", "scale")),
)
ROWS = {row.name: row for row in (*question_rows.ROWS, *paper_rows.ROWS)}


def verdict(row: Row) -> str:
  return row.verdict if isinstance(row.verdict, str) else row.verdict()


def entry(row: Row, level: str, start: str = "") -> str:
  """Returns a table's section: question, what is here, what is published, verdict, command.

  Args:
    level: marks of the heading.
    start: folder from which the link to the table's page is relative.
  """
  page = os.path.relpath(folder(row.name) / "README.md", HERE / start)
  lines = (("Here", filled(row.result, row.name, row.numbers)), ("Published", row.published),
           ("Verdict", verdict(row)), ("Command", row.command))
  return f"{level} [{row.name}]({page}): {row.question}\n\n" + "\n".join(
      f"- *{name}*: {text}" for name, text in lines if text != "-") + "\n"


def commits(row: Row) -> str:
  """Returns the commits at which a toy last ran: those of its results, or the line's."""
  results = sweep_results.read(folder(row.name)).values()
  names = dict.fromkeys(sweep_results.short_commit(result)[:7] for result in results)
  return ", ".join(names) or row.commit


def tables() -> str:
  """Returns the part of tables.md: a section for each main question."""
  return "\n".join(f"## {number}. {question.title}\n\n"
                   + "\n".join(entry(ROWS[name], "###") for name in question.tables)
                   for number, question in enumerate(QUESTIONS, 1))


def papers() -> str:
  """Returns the part of papers/README.md: a section for each toy."""
  return "\n".join(f"{entry(row, '##', 'papers')}- *Last ran at*: {commits(row)}\n"
                   for row in paper_rows.ROWS)


PARTS = {HERE / "tables.md": tables, HERE / "papers" / "README.md": papers,
         HERE.parent / "README.md": ratio_rows.answer}


def main() -> None:
  for page, text in PARTS.items():
    replace_part(page, "experiments/matrix.py", text())


if __name__ == "__main__":
  main()
