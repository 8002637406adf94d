"""Writes the lists of tables: tables.md, by main question; papers/README.md, the toys of one paper
each; and README.md's results, a line for each main question.

  python experiments/matrix.py

Every number comes from the committed results.
"""

import dataclasses
import os

import paper_rows
import question_rows
from table_row import HERE, Row, filled, folder

from experiments.tables_lib import sweep_results
from experiments.tables_lib.page_parts import Place, replace_part
from jaxrl_llm.reporting.tables import markdown_table

HEADER = ("table", "question", "command, time on 2 cores", "here", "published", "verdict")
PAPER_HEADER = ("toy", "question", "command", "here", "published", "verdict", "last ran at")


@dataclasses.dataclass(frozen=True)
class Question:
  """A main question: a section of tables.md, and a line of README.md.

  Attributes:
    title: the section's.
    tables: folders, the one whose page answers first.
    question: as README.md has it.
    answer: with {} for each number; empty: the verdict of the first table.
    numbers: their places in the first table's page.
  """

  title: str
  tables: tuple[str, ...]
  question: str
  answer: str = ""
  numbers: tuple[Place, ...] = ()


def variance(name: str) -> Place:
  return Place("run.py", (name,), "drift 1", title="variance")


QUESTIONS = (
    Question("What does a ratio do to the gradient?", ("exact", "atlas"),
             "bias and variance of the gradient?",
             "full product: no bias, variance {} (drift 1); up to t {}; MinPRO {}",
             (variance("full sequence"), variance("cumulative"), variance("minpro"))),
    Question("Which ratio holds on old rollouts?",
             ("staleness", "staleness_long", "arena", "in_flight", "position", "scale"),
             "which ratio holds on old rollouts?"),
    Question("Which baseline?", ("baselines",), "which baseline, from how many samples?",
             "4 samples minus 32 of RLOO: {:+.3f} (RLOO), {:+.3f} (OTB), both decided",
             tuple(Place("sweep.py, verdicts", ("4 against 32", name),
                         "mean over the run, difference") for name in ("RLOO", "OTB"))),
    Question("Does credit land on the token that decides?", ("credit", "distillation"),
             "does credit land where it is decided?",
             "cosine {:.2f} (GRPO), {:.2f} (TEMPO; first token {:.2f}), {:.2f} (GAE, exact values)",
             tuple(Place("run.py, alignment by condition", (name,), column) for name, column in (
                 ("GRPO", "middle, completions differ"), ("TEMPO", "middle, completions differ"),
                 ("TEMPO", "first token"),
                 ("GAE(0.95), exact values", "middle, completions differ")))),
    Question("Which weighting and which reward, where lengths differ?", ("aggregation", "length"),
             "which weighting of tokens?",
             "accuracy minus token's: sequence {:+.3f}, fixed {:+.3f}, balanced {:+.3f}: open",
             tuple(Place("sweep.py, verdicts", (name,), "mean over the run, difference")
                   for name in ("sequence", "fixed", "balanced"))),
    Question("Do the sampler's numerics matter?", ("mismatch",),
             "does the sampler's number format matter?",
             "accuracy minus the trainer's: bfloat16 {:+.3f}, int8 {:+.3f}, noise {:+.3f}",
             tuple(Place("sweep.py, verdicts", (sampler, "nothing"),
                         "mean over the run, difference")
                   for sampler in ("bfloat16", "int8, bfloat16", "noise 2"))),
    Question("And with a tool?", ("tools",), "which ratio or baseline, with a tool?",
             "minus GRPO: MinPRO {:+.3f}, CTPO {:+.3f}, OTB {:+.3f} (above); GSPO {:+.3f}",
             tuple(Place("sweep.py, verdicts", (name, "GRPO"), "mean over the run, difference")
                   for name in ("MinPRO", "CTPO", "OTB", "GSPO"))),
)
ROWS = {row.name: row for row in (*question_rows.ROWS, *paper_rows.ROWS)}


def verdict(row: Row) -> str:
  return row.verdict if isinstance(row.verdict, str) else row.verdict()


def line(row: Row) -> tuple[str, ...]:
  """Returns the cells below HEADER."""
  page = folder(row.name).relative_to(HERE) / "README.md"
  return (f"[{row.name}]({page})", row.question, row.command,
          filled(row.result, row.name, row.numbers), row.published, verdict(row))


def paper_line(row: Row) -> tuple[str, ...]:
  """Returns the cells below PAPER_HEADER, on a page in the papers' folder."""
  page = os.path.relpath(folder(row.name) / "README.md", HERE / "papers")
  return (f"[{row.name}]({page})", *line(row)[1:], commits(row))


def commits(row: Row) -> str:
  """Returns the commits at which a toy last ran: those of its results, or the line's."""
  results = sweep_results.read(folder(row.name)).values()
  names = dict.fromkeys(sweep_results.short_commit(result)[:7] for result in results)
  return ", ".join(names) or row.commit


def tables() -> str:
  """Returns the part of tables.md: a section for each main question."""
  return "\n".join(
      f"## {number}. {question.title}\n\n"
      + markdown_table(HEADER, [line(ROWS[name]) for name in question.tables])
      for number, question in enumerate(QUESTIONS, 1))


def papers() -> str:
  """Returns the table of papers/README.md."""
  return markdown_table(PAPER_HEADER, [paper_line(row) for row in paper_rows.ROWS])


def results() -> str:
  """Returns README.md's table: question with its page, and answer, of each main question."""
  lines = []
  for question in QUESTIONS:
    name = question.tables[0]
    answer = filled(question.answer, name, question.numbers) or verdict(ROWS[name])
    lines.append((f"[{question.question}](experiments/{name}/README.md)", answer))
  return markdown_table(("question", "answer here"), lines)


PARTS = {HERE / "tables.md": tables, HERE / "papers" / "README.md": papers,
         HERE.parent / "README.md": results}


def main() -> None:
  for page, text in PARTS.items():
    replace_part(page, "experiments/matrix.py", text())


if __name__ == "__main__":
  main()
