"""Writes experiments/tables.md, the list of tables: question, command, time, result here, what is
published; and README.md's results, a line for each of its main questions.

  python experiments/matrix.py

Numbers come from the committed results; the sentences around them are written here.
"""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from jaxrl_llm.lab.published import Claim
from jaxrl_llm.reporting import page_parts
from jaxrl_llm.reporting.page_parts import Place
from jaxrl_llm.reporting.tables import markdown_table, replace_part, split

HERE = Path(__file__).parent
BATCH = "96 prompts, 200 iterations"
MEAN_CHANGE = "mean accuracy less GRPO's"
HEADER = ("table", "question", "command, time on 2 cores", "here", "published", "verdict")
# The main questions, with the answers that README.md gives; without one it shows the verdict.
MAIN = {
    "exact": "the full product alone has no bias; up to t it has less variance",
    "staleness": "",
    "mismatch": "bfloat16 or float32: not tested, accuracy is at its ceiling",
    "baselines": "OTB trains with 4 completions as with 32, and so does every other",
    "aggregation": "accuracy is at its ceiling; `sequence` and `balanced` end longer",
    "credit": "TEMPO finds the deciding tokens only after a shared prefix",
    "tools": "CTPO learns earlier than GSPO, and ends no better",
}


@dataclasses.dataclass(frozen=True)
class Row:
  """A line of the list.

  Attributes:
    name: folder of the table.
    result: with {} for each number.
    numbers: place of each number; see `published.Claim`.
    published: the claim and its source.
    verdict: in words, or how it is computed from the table.
  """

  name: str
  question: str
  command: str
  result: str
  numbers: tuple[Place | tuple, ...]
  published: str
  verdict: str | Callable[[], str]


def both(part: str, row: tuple[str, ...], column: str, title: str = "") -> tuple[Place, Place]:
  """Returns the places of a mean and of what stands behind its `±`."""
  return (Place(part, row, column, 0, title), Place(part, row, column, 1, title))


def interval(part: str, row: tuple[str, ...], column: str) -> tuple[Place, Place, Place]:
  """Returns the places of a difference, and of the two ends of its interval."""
  return (*both(part, row, column), Place(part, row, column, 2))


def beside_reference() -> str:
  """Returns what the table of old rollouts decides at age 8, by its own words."""
  page = HERE / "staleness" / "README.md"
  (table,) = page_parts.tables(split(page.read_text(), "sweep.py, verdicts", page)[1])
  words: dict[str, list[str]] = {}
  for row in table.rows:
    if row[0] == "8":
      words.setdefault(row[-1], []).append(row[1])
  decided = [f"{side} GRPO: {', '.join(words[side])}" for side in ("above", "below")
             if side in words]
  return "; ".join(decided) or "none is told from GRPO"


def flat(pairs: Iterable[tuple[Place, ...]]) -> tuple[Place, ...]:
  return tuple(place for pair in pairs for place in pair)


ROWS = (
    Row("atlas", "what does an estimator do to a token's gradient?", "`run.py`, 1 min",
        "at t = 100 every token may move {} (`ppo`), {} (`ctpo`), {} nats (`gspo`)",
        tuple(Place("run.py", (name,), "A > 0, up", -1, "Every token of the row moves")
              for name in ("ppo", "ctpo", "gspo")),
        "-", "by construction"),
    Row("arena", "which ratio holds over whole runs, by step and age?",
        "`run.py --jobs=2`, 30 min of one core so far",
        "of the optimum at age 64, 256 tokens, warm start: {:.2f} ± {:.2f} (`cispo`), {:.2f} ± "
        "{:.2f} (`minpro`), {:.2f} ± {:.2f} (`grpo`), {:.2f} ± {:.2f} (no ratio); no idea of our "
        "own is ahead of CISPO",
        flat(both("page.py tuned", (name,), "warm 256, age 64")
             for name in ("cispo", "minpro", "grpo", "none")),
        "MinPRO ahead of GRPO and of CISPO on old rows (2601.22718)",
        "neither is decided, with 64 further seeds"),
    Row("exact", "bias and variance of the gradient?", "`run.py`, 3 min",
        "variance at drift 1: {} with the product up to t, {} with the row's",
        tuple(Place("run.py", (name,), "drift 1", title="variance")
              for name in ("cumulative", "full sequence")),
        "less variance up to t than over the row (2605.07331, second-hand)", "agrees"),
    Row("mismatch", "does the sampler's number format matter?", "`run.py`, 2 min; training: "
        "`sweep.py --jobs=2`, 90 min",
        "{:.2%} of tokens outside [0.9, 1.1] in bfloat16, temperature 2; trained with it, mean "
        "accuracy {:.3f} ± {:.3f} instead of {:.3f} ± {:.3f}",
        (("2", "lines", 3, "all", "mismatch/outside"),
         *flat(both("sweep.py", (sampler, "nothing"), "mean over the run")
               for sampler in ("bfloat16", "the trainer's"))),
        "7.5 % of tokens, 0.5 B parameters (trl issue 6789, second-hand)",
        "training is at its ceiling: not tested"),
    Row("staleness", "which ratio holds on old rollouts?", "`sweep.py --jobs=2`, 2 core-hours",
        "mean sampled accuracy over the run at age 8: {:.2f} (no ratio), {:.2f} (`grpo`), {:.2f} "
        "(`gspo`), {:.2f} (`cispo`), {:.2f} (`minpro`), {:.2f} (`ctpo`), {:.2f} (full sequence)",
        tuple(Place("sweep.py, comparison", ("8", name), "mean over the run") for name in (
            "no ratio", "GRPO", "GSPO", "CISPO", "MinPRO", "CTPO", "full sequence")),
        "GRPO stays low, CISPO collapses, MinPRO keeps rising (2601.22718, second-hand)",
        beside_reference),
    Row("in_flight", "what do completions of several policies cost?", "`sweep.py --jobs=2`, 10 min",
        "mean sampled accuracy over the run less that of staleness 1: {:+.3f} ({:+.3f} to {:+.3f})",
        (Place("sweep.py, verdicts", ("in flight",), "mean over the run, less staleness 1"),
         *both("sweep.py, verdicts", ("in flight",), "interval, Holm-corrected")),
        "-", "nothing here; they are younger than a batch of the iteration before"),
    Row("position", "does the spread of L_t grow as sqrt(t)?", "`sweep.py --jobs=2`, 35 min",
        "slope of log std on log t: {:.2f} ± {:.2f} at delay 1, {:.2f} ± {:.2f} at 4, "
        "{:.2f} ± {:.2f} at 8, {:.2f} ± {:.2f} at 16",
        flat(both("sweep.py", (delay,), "slope of log std(L_t) on log t")
             for delay in ("1", "4", "8", "16")),
        "it does (2605.07331, second-hand)",
        "not in conflict at delay 8 (any power from 0.17 to 0.63), rejected at 16; not told from "
        "linear growth before"),
    Row("credit", "does credit land on the token that decides?", "`run.py`, 4 min",
        "cosine with the exact advantage, 16 rows: {:.2f} (`grpo`), {:.2f} (`otb`), "
        "{:.2f} (`tempo`; {:.2f} at the first token), {:.2f} (`gae`, exact values, lambda 0.95)",
        tuple(Place("run.py, alignment by condition", (name,), column) for name, column in (
            ("GRPO", "middle, rows differ"), ("OTB", "middle, rows differ"),
            ("TEMPO", "middle, rows differ"), ("TEMPO", "first token"),
            ("GAE(0.95), exact values", "middle, rows differ"))),
        "credit goes to the tokens where answers part (TEMPO, 2509.18314, second-hand)",
        "only behind shared beginnings"),
    Row("baselines", "which baseline, from how many rows?",
        "`sweep.py --jobs=2`, 20 min of policies, 85 min of training",
        "noise of the gradient with 4 rows, RLOO's being 1: {:.2f} ± {:.2f} (`otb`), {:.2f} "
        "± {:.2f} (`otb` of the sequence), {:.2f} ± {:.2f} (`tempo`); mean accuracy of 16 prompts "
        "{:.2f} ± {:.2f} (`otb`, 4 rows), {:.2f} ± {:.2f} (`rloo`, 4 rows), {:.2f} ± {:.2f} "
        "(`rloo`, 32 rows)",
        (*flat(both("sweep.py, early", (name,), "noise, 4 rows")
               for name in ("OTB", "OTB of the sequence", "TEMPO")),
         *flat(both("sweep.py, training", ("equal prompts", rows, name),
                    "mean accuracy over the run")
               for name, rows in (("OTB", "4"), ("RLOO", "4"), ("RLOO", "32")))),
        "OTB with 4 rows trains as others with 32 (2602.07078, abstract)",
        "every baseline does here; differences are below a point"),
    Row("length", "what do rewards for short answers cost?", "`sweep.py --jobs=2`, 1 h",
        "of 5 seeds, {:.0f} learn to work 3 terms out with the plain reward, {:.0f} with a linear "
        "penalty, {:.0f} with GRPO-lambda on all groups, {:.0f} on the best fifth",
        tuple(Place("sweep.py", ("3 terms", name), "seeds that work it out")
              for name in ("correct or not", "linear penalty", "GRPO-lambda, all groups",
                           "GRPO-lambda")),
        "half as long and as accurate (GRPO-lambda, 2505.18086, abstract)",
        "accuracy not decided; length cannot be seen at this scale"),
    Row("aggregation", "which weighting, where length follows correctness?",
        "`sweep.py --jobs=2`, under 2 h",
        "worked answers, longer than guesses, end at {:.1f} ± {:.1f} tokens (`token`), {:.1f} ± "
        "{:.1f} (`fixed`), {:.1f} ± {:.1f} (`sequence`), {:.1f} ± {:.1f} (`balanced`); accuracy "
        "{:.2f} with each",
        (*flat(both("sweep.py", ("longer", name), "worked, end")
               for name in ("token", "fixed", "sequence", "balanced")),
         Place("sweep.py", ("longer", "token"), "accuracy at the end")),
        "balanced best in 3 of 4 settings by accuracy (2605.04077, second-hand)",
        "accuracy at its ceiling in 13 of 15: not tested"),
    Row("pipo", "what do a further step and a further draw buy?",
        "`sweep.py --jobs=2`, under 90 min",
        "thousands of tokens until 90 %: {:.1f} ± {:.1f} (`grpo`), {:.1f} ± {:.1f} (`pipo`), "
        "{:.1f} ± {:.1f} (twice the steps), {:.1f} ± {:.1f} (dynamic sampling)",
        flat(both("sweep.py", ("32 groups of 8", name), "tokens until 90 %, thousands")
             for name in ("GRPO", "PIPO", "GRPO, twice the steps", "dynamic sampling")),
        "PIPO gains 0.9 to 2.8 points (2604.00860 v5, second-hand)",
        "no gain; twice the steps do, at the one step size that was run"),
    Row("tools", "which ratio or baseline, with a tool?", "`sweep.py --jobs=2`, 80 min of one core",
        "mean accuracy over the run {:.2f} ± {:.2f} (`grpo`); less that: {:+.3f} ({:+.3f} to "
        "{:+.3f}, `gspo`), {:+.3f} ({:+.3f} to {:+.3f}, `ctpo`), {:+.3f} ({:+.3f} to {:+.3f}, "
        "`minpro`), {:+.3f} ({:+.3f} to {:+.3f}, `tir_otb`)",
        (*both("sweep.py", ("calculator", "GRPO"), "mean accuracy over the run"),
         *flat(interval("sweep.py", ("calculator", name), "less GRPO's")
               for name in ("GSPO", "CTPO", "MinPRO", "OTB"))),
        "CTPO ahead of GSPO with tools (2605.07331, second-hand)", "CTPO earlier, not better"),
    Row("scale", "does the order hold at other sizes and lengths?",
        "`sweep.py --jobs=2`, 2 h with AVX-512",
        "mean accuracy over the run less GSPO's with 0.3, 0.8 and 4.7 M parameters: `ctpo` "
        "{:+.2f}, {:+.2f}, {:+.2f} (15 tokens), {:+.2f}, {:+.2f}, {:+.2f} (23); `minpro` {:+.2f}, "
        "{:+.2f}, {:+.2f} (15), {:+.2f}, {:+.2f}, {:+.2f} (23)",
        tuple(Place("sweep.py", (size, terms, name), "mean over the run less GSPO's")
              for name in ("CTPO", "MinPRO") for terms in ("4", "6")
              for size in ("0.3 M", "0.8 M", "4.7 M")),
        "CTPO ahead of GSPO at 4 B and at 14 B (2605.07331, second-hand)",
        "CTPO behind GSPO in every cell, on a switch at one step size; one of 36 differences "
        "survives Holm's correction"),
    Row("arca", "does credit by adapters speed up their training?", "`toy.py`",
        "mean accuracy less that of `grpo`: {:+.3f} ± {:.3f} (rank 1), {:+.3f} ± {:.3f} (rank 8)",
        flat(both("toy.py", (rank, "ARCA"), MEAN_CHANGE) for rank in ("1", "8")),
        "competitive at equal rank (2606.00257, abstract)",
        "no difference; later in the three of ten runs that learn"),
    Row("occ", "how much of a second head's gradient should the trunk get?",
        "`toy.py`, 26 min of one core",
        "accuracy less that of no gradient: {:+.1f} ± {:.1f} points (cross-entropy), {:+.1f} ± "
        "{:.1f} (policy gradient), {:+.1f} ± {:.1f} (calibrated)",
        flat(both("toy.py, outcome", (f"`{name}`",), "accuracy - that of `detach`")
             for name in ("ce", "policy", "occ")),
        "-11.2, -1.5 and +2.8 points (2605.28184, second-hand)", "not tested: nothing was learnt"),
    Row("number_tokens", "do number tokens help to compare and add?", "`sweep.py --jobs=2`, 15 min",
        "right where the longer is smaller: {:.0f} ± {:.0f} % as characters, "
        "{:.0f} ± {:.0f} % with group tokens",
        flat(both("sweep.py", (name,), "longer is smaller")
             for name in ("characters", "vocabulary")),
        "no experiment is published (2604.11582)",
        "paired by seed +14.9 points, 5 of 5 seeds; adding was not learnt"),
    Row("length_bands", "does a paid band of lengths keep the content?",
        "`sweep.py --jobs=2`, 20 min beside other work",
        "inside the band {:.0f} % before, {:.0f} ± {:.0f} % after (of sampled copies {:.0f} ± "
        "{:.0f} %); content {:.0f} %",
        (Place("sweep.py", (BATCH, "held-out, greedy, before"), "inside the band, %"),
         *both("sweep.py", (BATCH, "held-out, greedy, after"), "inside the band, %"),
         *both("sweep.py", (BATCH, "sampled, last iteration"), "inside the band, %"),
         Place("sweep.py", (BATCH, "held-out, greedy, after"), "content right, %")),
        "it does in translation (HOMURA, 2601.10187)", "agrees on copies"),
    Row("judges", "does deleting a judge's cycles rank better?", "`toy.py`",
        "rank correlation against net wins: {:+.3f} ± {:.3f} (1 in 10 verdicts reversed), "
        "{:+.3f} ± {:.3f} (logistic)",
        tuple(("tournaments", judge, field)
              for judge in ("1 in 10 reversed", "logistic, scale 1")
              for field in ("gain", "gain_half_width")),
        "it does (2510.15514)", "depends on how the judge errs"),
    Row("soft_tokens", "does RL through soft thoughts teach?", "`run.py`, 17 min beside other work",
        "greedy accuracy {:+.0f} ± {:.0f} points (hard), {:+.0f} ± {:.0f} (fuzzy), {:+.0f} ± "
        "{:.0f} (soft); pass@32 soft less hard {:+.0f} ± {:.0f}",
        (*flat(both("run.py, gains", (name,), "hard greedy") for name in ("hard", "fuzzy", "soft")),
         *both("run.py, differences", ("soft - hard",), "pass@32, hard sampled")),
        "as good as hard in pass@1, better in pass@32 (2509.19170)",
        "no difference; not shown to come from the thoughts"),
    Row("tvm", "do labels of shared prefixes make better values?", "`toy.py`, 7 min",
        "squared error less that of outcome labels {:+.4f} ± {:.4f}; step beam search {:.2f} ± "
        "{:.2f}, one sample {:.2f}",
        (*both("toy.py, fit", ("prefix - outcome",), "squared error"),
         *both("toy.py, trained", ("step beam search, K = 8, b = 2",), "accuracy"),
         Place("toy.py, trained", ("one sample",), "accuracy")),
        "they do (2407.12863; numbers unconfirmed)", "labels not decided; search pays"),
    Row("critical_tokens", "does weighing critical tokens help DPO?", "`toy.py`, 9 min",
        "sampled accuracy {:.2f} ± {:.2f} (DPO), {:.2f} ± {:.2f} (RPO), {:.2f} ± {:.2f} (cDPO), "
        "{:.2f} ± {:.2f} (the same weight on every rejected token)",
        flat(both("toy.py, trained", (name,), "accuracy, sampled")
             for name in ("DPO", "RPO", "cDPO", "DPO, rejected tokens weighed alike")),
        "cDPO above RPO above DPO (2411.19943)",
        "agrees on DPO (unstable at this step), not on RPO; not due to which tokens"),
    Row("counting", "does a model know counts that it does not say?", "`run.py`, 9 min of one core",
        "next token right with planted rows in the head {:.0f} ± {:.0f} %, probe {:.0f} %; after "
        "nine rows are trained {:.0f} ± {:.1f} % (generation {:.0f} ± {:.0f} %), after LoRA "
        "{:.0f} ± {:.1f} % ({:.0f} ± {:.0f} %)",
        (*both("run.py, modes", ("planted",), "digit-restricted, %"),
         Place("run.py, modes", ("planted",), "probe, rounded, %"),
         *flat(both("run.py, modes", (name,), column) for name in ("rows, hinge", "LoRA q/v")
               for column in ("digit-restricted, %", "greedy generation, %"))),
        "small cosines of probe and head rows show it (2605.03258)",
        "the next token is repaired, generation not on every seed; a working head's cosines are "
        "below chance, too"),
    Row("budgets", "which layers can spare channels?", "`run.py`",
        "loss less that of equal shares {:+.3f} ± {:.3f} (policy), {:+.3f} ± {:.3f} (with the "
        "curriculum), {:+.3f} ± {:.3f} (random search)",
        flat(both("run.py, losses", (name,), "loss - uniform's")
             for name in ("policy, no curriculum", "policy, curriculum", "random search")),
        "a policy finds better shares than a search (2511.18977)",
        "better than equal shares without the curriculum, not decided with it; not better than "
        "random search"),
)


def folder(name: str) -> Path:
  """Returns the folder of a table, which a paper's has among the papers."""
  return HERE / name if (HERE / name).exists() else HERE / "papers" / name


def verdict(row: Row) -> str:
  return row.verdict if isinstance(row.verdict, str) else row.verdict()


def line(row: Row) -> tuple[str, ...]:
  """Returns the cells below HEADER."""
  numbers = [Claim(row.question, "", None, place).here(folder(row.name)) for place in row.numbers]
  page = folder(row.name).relative_to(HERE) / "README.md"
  return (f"[{row.name}]({page})", row.question, row.command,
          row.result.format(*numbers), row.published, verdict(row))


def results() -> str:
  """Returns README.md's table: question with its page, and answer, of each main question."""
  rows = {row.name: row for row in ROWS}
  return markdown_table(("question", "answer here"), [
      (f"[{rows[name].question}](experiments/{name}/README.md)", answer or verdict(rows[name]))
      for name, answer in MAIN.items()])


def main() -> None:
  table = markdown_table(HEADER, [line(row) for row in ROWS])
  replace_part(HERE / "tables.md", "experiments/matrix.py", table)
  replace_part(HERE.parent / "README.md", "experiments/matrix.py", results())


if __name__ == "__main__":
  main()
