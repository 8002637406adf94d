"""README.md's answer to "which ratio?": sentences and a table, with numbers from the pages of the
arena and of the transformer's table.
"""

import dataclasses
import textwrap
from collections.abc import Callable
from pathlib import Path

from table_row import HERE

from experiments.tables_lib import page_parts
from experiments.tables_lib.page_parts import Place
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.reporting.tables import markdown_table

ARENA, DETAILS, STALENESS = (HERE / page for page in (
    "arena/README.md", "arena/details.md", "staleness/README.md"))
WIDTH = 158  # characters of a line
BEDS = ("arena", "transformer")  # those of the claims
LABELS = {"arena": "arena", "transformer": "transformer", "lengths": "lengths vary"}
# Preset, name in the arena's table of differences to GRPO, and the weight of a token.
PRESETS = (
    ("cispo", "CISPO", "r_t up to 5; every token keeps its gradient"),
    ("minpro", "MinPRO", "r_t times the smallest earlier ratio"),
    ("kpop", "KPop", "r_t, masked where the probability moved far (by KL)"),
    ("dppo_tv", "DPPO-TV", "r_t, masked where the probability moved far"),
    ("ctpo", "CTPO", "product of the ratios up to t, in a window"),
    ("gspo", "GSPO", "geometric mean over the completion, clipped"),
    ("grpo", "", "r_t, no gradient beyond 1 ± .2"),
    ("reinforce", "no ratio", "1"),
)


def gap(name: str, bed: str, measure: str) -> Place:
  """Returns the place of a method's difference to GRPO."""
  return Place("page.py forest", (name,), f"{bed}, {measure}")


def claim(text: str, bed: str, measure: str, number: int = 0) -> Place:
  """Returns the place of a claim's difference; numbers 1 and 2 are the ends of its interval."""
  return Place("page.py differences", (text,), f"{bed}, {measure}", number)


def transformer(name: str, column: str) -> Place:
  """Returns the place of a number of the transformer's table at staleness 8."""
  return Place("sweep.py, comparison", ("8", name), column)


def fresh_gap() -> float:
  """Returns how far the ratios are from CISPO's end on fresh rollouts, at most."""
  (table,) = page_parts.tables(page_parts.split(DETAILS.read_text(), "page.py noise", DETAILS)[1])
  column = table.header.index("end minus cispo")
  ends = [page_parts.numbers(row[column])[0] for row in table.rows
          if row[0].endswith("noise 0") and row[1] in ("minpro", "grpo", "ctpo", "none")]
  return max(map(abs, ends))


@dataclasses.dataclass(frozen=True)
class Sentence:
  """A sentence of the answer with the numbers of a page.

  Attributes:
    text: with {} for each number.
    page: that has the numbers.
    places: of the numbers; beds and measures in the order of the text.
    holds: of the numbers, whether the words around them are true.
  """

  text: str
  page: Path
  places: tuple[Place, ...]
  holds: Callable[..., bool]

  def filled(self) -> str:
    """Returns the sentence.

    Raises:
      ConfigError: its words are not true of the numbers.
    """
    values = [place.read(self.page) for place in self.places]
    if not self.holds(*values):
      raise ConfigError(f"{self.page}: of {', '.join(f'{value:g}' for value in values)} it is not "
                        f"true that {self.text!r}. Fix: the sentence in {Path(__file__).name}.")
    return self.text.format(*values)


EQUAL = 0.03  # differences up to it are "as good as" and "match"
SENTENCES = (
    Sentence(
        "At staleness 4 and more take `cispo`, the ratio to the policy that sampled, capped, with "
        "its gradient kept: {0:+.2f} (arena), {2:+.2f} (transformer) at the end.",
        ARENA, tuple(gap("CISPO", bed, measure) for bed in BEDS for measure in ("end", "mean")),
        lambda *gaps: min(gaps) > EQUAL),
    Sentence(
        "`minpro` is as good at the end ({:+.2f}, {:+.2f} to CISPO), over the run behind in the "
        "arena ({:+.2f}) and ahead on the transformer ({:+.2f}).",
        ARENA, tuple(claim("MinPRO ahead of CISPO", bed, measure) for measure in ("end", "mean")
                     for bed in BEDS),
        lambda *gaps: max(map(abs, gaps[:2])) <= EQUAL and gaps[2] < 0 < gaps[3]),
    Sentence(
        "`grpo` is the weak default on stale data, worst in the arena where lengths vary (256 "
        "tokens, staleness 16: {:.2f} of the optimum, no ratio {:.2f}, `cispo` {:.2f}).",
        ARENA, tuple(Place("page.py fresh ending", (name,), "256, 16")
                     for name in ("grpo", "none", "cispo")),
        lambda *ends: list(ends) == sorted(ends)),
    Sentence(
        "Where they vary on the transformer it is nearer to `cispo` ({:+.2f}, {:+.2f}) and `ctpo` "
        "is {:+.2f}, {:+.2f} ahead.",
        ARENA, tuple(gap(name, "lengths", measure) for name in ("CISPO", "CTPO")
                     for measure in ("end", "mean")),
        lambda *gaps: max(gaps[:2]) < 0.1 and min(gaps[2:]) > max(EQUAL, *gaps[:2])),
    Sentence(
        "At staleness 8 `gspo` and `ctpo` want three times the learning rate and drop {:.0f} and "
        "{:.0f} % of 32 tokens.",
        STALENESS, (*(transformer(name, "without gradient, %") for name in ("GSPO", "CTPO")),
                    *(transformer(name, "learning rate") for name in ("GSPO", "CTPO", "CISPO"))),
        lambda *values: min(values[:2]) > 10 and {round(rate / values[4], 6)
                                                  for rate in values[2:4]} == {3}),
    Sentence(
        "They match `cispo` on the transformer only.",
        ARENA, tuple(gap(name, bed, "end") for bed in reversed(BEDS) for name in ("GSPO", "CTPO")),
        lambda *gaps: min(gaps[:2]) > 5 * max(gaps[2:])),
    Sentence(
        "Avoid no ratio on stale data (`cispo` is {:+.2f} and {:+.2f} ahead at the end) and, from "
        "some 256 tokens on, the product over the completion ({:+.2f}, arena).",
        ARENA, (*(claim("CISPO ahead of no ratio", bed, "end") for bed in BEDS),
                claim("full product behind CISPO, 256 and more", "arena", "end")),
        lambda *gaps: min(gaps) > EQUAL),
)


def answer() -> str:
  """Returns the numbered sentences, then a row for each preset: differences to GRPO."""
  first = ("On fresh rollouts tune the learning rate first: no ratio, GRPO, MinPRO and CTPO are "
           f"within {fresh_gap():.3f} of CISPO at the end (arena).")
  texts = [first, *(sentence.filled() for sentence in SENTENCES)]
  texts[3:7] = [" ".join(texts[3:5]), " ".join(texts[5:7])]
  lines = []
  for preset, name, weight in PRESETS:
    cells = [", ".join(f"{gap(name, bed, measure).read(ARENA):+.2f}"
                       for measure in ("end", "mean")) if ran(name, bed) else "-"
             for bed in LABELS]
    lines.append((f"`{preset}`", weight, *(cells if name else ["0"] * len(LABELS))))
  header = ("preset", "weight of a token", *(f"{label}: end, mean" for label in LABELS.values()))
  wrapped = [textwrap.fill(f"{number}. {text}", WIDTH, subsequent_indent="   ")
             for number, text in enumerate(texts, 1)]
  return "\n".join(wrapped) + f"\n\n{markdown_table(header, lines)}"


def ran(name: str, bed: str) -> bool:
  """Returns whether a method has a difference to GRPO in a test bed."""
  try:
    gap(name, bed, "end").read(ARENA)
  except (LookupError, IndexError):
    return False
  return True
