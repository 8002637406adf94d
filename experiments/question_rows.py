"""The tables of the main questions, for matrix.py: numbers come from the committed results, the
sentences around them are written here.
"""

from collections.abc import Callable

import numpy as np
from table_row import HERE, Row, both, flat, interval

from experiments.tables_lib import page_parts
from experiments.tables_lib.page_parts import Place, split

ARENA_METHODS = ("CISPO", "MinPRO", "CTPO", "GSPO", "no ratio")
SHORT_REWARDS = ("correct or not", "linear penalty", "GRPO-lambda")
REAL_METHODS = ("no ratio", "GRPO", "CISPO", "MinPRO", "CTPO")
SIDES = ("above", "below", "not distinguishable")  # words of a table's last column


def beside_reference() -> str:
  """Returns what the table of old rollouts says at staleness 8, by both measures."""
  page = HERE / "staleness" / "README.md"
  out = []
  for part, measure in (("verdicts", "by the mean over the run"),
                        ("verdicts at the end", "at the end")):
    (table,) = page_parts.tables(split(page.read_text(), f"sweep.py, {part}", page)[1])
    words = {side: [row[1] for row in table.rows if row[0] == "8" and row[-1] == side]
             for side in SIDES[:2]}
    sides = [f"{side} GRPO: {', '.join(names)}" for side, names in words.items() if names]
    out.append(f"{measure}, {'; '.join(sides) or 'none is distinguishable from GRPO'}")
  return f"on one transformer task, {'; '.join(out)}"


def verdicts_of(name: str, label: Callable[[tuple], str] = lambda row: row[0]
                ) -> Callable[[], str]:
  """Returns what reads the verdicts of a table's comparisons, side by side.

  Args:
    label: from the cells of a line to its name.
  """
  page = HERE / name / "README.md"

  def words() -> str:
    (table,) = page_parts.tables(split(page.read_text(), "sweep.py, verdicts", page)[1])
    sides: dict[str, list[str]] = {}
    for row in table.rows:
      sides.setdefault(row[-1], []).append(label(row))
    return "by the mean over the run, " + "; ".join(
        f"{side}: {', '.join(sides[side])}" for side in SIDES if side in sides)

  return words


def baselines_verdict() -> str:
  """Returns what the table of baselines says: at equal samples, iterations and tokens."""
  page = HERE / "baselines" / "README.md"
  (table,), (tokens,) = (page_parts.tables(split(page.read_text(), f"sweep.py, {part}", page)[1])
                         for part in ("verdicts", "equal tokens"))
  gaps = [abs(float(row[2])) for row in table.rows if not row[0].startswith("4 against")]
  few = [float(row[2]) for row in table.rows if row[0].startswith("4 against")]
  gained = [page_parts.numbers(row[-1])[0] for row in tokens.rows]
  return (f"with as many samples no baseline differs from RLOO by more than {max(gaps):.3f}; 4 "
          f"samples instead of 32 cost {-np.mean(few):.2f} after as many iterations and gain "
          f"{np.mean(gained):.2f} after as many tokens, in the mean over the baselines")


def arena_verdicts() -> str:
  """Returns the arena's verdicts on MinPRO and on ideas of our own, in its own words."""
  page, details = (HERE / "arena" / name for name in ("README.md", "details.md"))
  (table,) = page_parts.tables(split(page.read_text(), "page.py claims", page)[1])
  ideas = split(details.read_text(), "page.py ideas", details)[1].strip().partition("\n")[0]
  return "; ".join([*(f"{row[0]}: {row[-1]}" for row in table.rows if row[0].startswith("MinPRO")),
                    ideas[0].lower() + ideas[1:].removesuffix(".")])


def position_verdict() -> str:
  """Returns the table's verdict, and the slopes of the arena's `warm` beside it."""
  page, details = HERE / "position" / "README.md", HERE / "arena" / "details.md"
  slope, half = (Place("sweep.py", ("8",), "slope of log std(L_t) on log t", number).read(page)
                 for number in (0, 1))
  (table,) = page_parts.tables(split(details.read_text(), "page.py drift", details)[1])
  slopes = [float(row[-1]) for row in table.rows if row[0] == "warm 256" and row[2] in ("4", "16")]
  return (f"not in conflict at delay 8 (any power from {slope - half:.2f} to {slope + half:.2f}), "
          "rejected at 16, not distinguishable from linear growth before; RL decides one token of "
          f"this task, and the arena's `warm`, where it does not, has {min(slopes):.2f} to "
          f"{max(slopes):.2f} at staleness 4 and 16 with 256 tokens")


def distillation_verdict() -> str:
  """Returns the table's verdict, which is of the mean, and the ends beside it."""
  page = HERE / "distillation" / "README.md"
  ends = [Place("sweep.py, comparison", (name,), "at the end").read(page)
          for name in ("teacher, advantage", "reward")]
  return (f"{verdicts_of('distillation')()}; at the end {ends[0]:.2f} (advantage) and "
          f"{ends[1]:.2f} (reward); one seed of seven learned nothing")


ROWS = (
    Row("exact", "bias and variance of the gradient?", "`run.py`, 3 min",
        "variance at drift 1: {} with the product up to t, {} with the completion's",
        tuple(Place("run.py", (name,), "drift 1", title="variance")
              for name in ("cumulative", "full sequence")),
        "less variance up to t than over the completion (2605.07331, second-hand)", "agrees"),
    Row("atlas", "what does an estimator do to a token's gradient?", "`run.py`, 1 min",
        "at t = 100 every token may move {} (`ppo`), {} (`ctpo`), {} nats (`gspo`)",
        tuple(Place("run.py", (name,), "A > 0, up", -1, "Every token of the row moves")
              for name in ("ppo", "ctpo", "gspo")),
        "-", "by construction"),
    Row("arena", "which ratio holds over whole runs, by step and staleness?",
        "`run.py --jobs=2`, 2 core-hours",
        "return at the end minus GRPO's, in shares of the optimum, mean over the cells of the map: "
        + ", ".join(f"{{:+.2f}} ({{:+.2f}} to {{:+.2f}}, {name}, {{:.0f}} seeds)"
                    for name in ARENA_METHODS)
        + "; 32 seeds are seeds that chose no learning rate",
        flat((*interval("page.py forest", (name,), "arena, end"),
              Place("page.py forest", (name,), "seeds")) for name in ARENA_METHODS),
        "MinPRO ahead of GRPO and of CISPO on old completions (2601.22718)", arena_verdicts),
    Row("staleness", "which ratio holds on old rollouts?", "`sweep.py --jobs=2`, 2 core-hours",
        "mean sampled accuracy over the run at staleness 8: {:.2f} (no ratio), {:.2f} (GRPO), "
        "{:.2f} (GSPO), {:.2f} (CISPO), {:.2f} (MinPRO), {:.2f} (CTPO without its correction), "
        "{:.2f} (full sequence), each with the ratio to the policy that sampled",
        tuple(Place("sweep.py, comparison", ("8", name), "mean over the run") for name in (
            "no ratio", "GRPO", "GSPO", "CISPO", "MinPRO", "CTPO", "full sequence")),
        "GRPO stays low, CISPO collapses, MinPRO keeps rising (2601.22718, second-hand)",
        beside_reference),
    Row("staleness_long", "and on completions of 128 tokens?", "`sweep.py --jobs=2`, 2 core-hours",
        "mean sampled accuracy over the run at staleness 8: {:.2f} (GRPO), {:.2f} (MinPRO), {:.2f} "
        "(CTPO without its correction)",
        tuple(Place("sweep.py, comparison", (name,), "mean over the run")
              for name in ("GRPO", "MinPRO", "CTPO")),
        "CTPO and MinPRO are for long completions (2605.07331, 2601.22718, second-hand)",
        verdicts_of("staleness_long")),
    Row("staleness_lengths", "and where lengths vary?", "`sweep.py --jobs=2`, 2.1 core-hours",
        "mean sampled accuracy over the run at staleness 8: {:.2f} (no ratio), {:.2f} (GRPO), "
        "{:.2f} (GSPO), {:.2f} (CISPO), {:.2f} (MinPRO), {:.2f} (CTPO without its correction), "
        "{:.2f} (full sequence)",
        tuple(Place("sweep.py, comparison", (name,), "mean over the run") for name in (
            "no ratio", "GRPO", "GSPO", "CISPO", "MinPRO", "CTPO", "full sequence")),
        "no paper varies the lengths alone", verdicts_of("staleness_lengths")),
    Row("smollm2/old_rollouts", "and for a language model that people know?",
        "`sweep.py`, 10 core-hours",
        "mean sampled accuracy over the run at staleness 8, SmolLM2-135M-Instruct: "
        + ", ".join(f"{{:.2f}} ({name})" for name in REAL_METHODS),
        tuple(Place("sweep.py, comparison", (f"{name}, 1e-5",), "mean over the run")
              for name in REAL_METHODS),
        "MinPRO ahead of GRPO and of CISPO on old completions (2601.22718)",
        verdicts_of("smollm2/old_rollouts")),
    Row("in_flight", "what do completions of several policies cost?", "`sweep.py --jobs=2`, 10 min",
        "mean sampled accuracy over the run minus that of staleness 1: {:+.3f} ({:+.3f} to "
        "{:+.3f})",
        (Place("sweep.py, verdicts", ("in flight",), "mean over the run, minus staleness 1"),
         *both("sweep.py, verdicts", ("in flight",), "interval, Holm-corrected")),
        "-", "no loss is seen; their tokens are less stale than a batch of the iteration before"),
    Row("position", "does the spread of L_t grow as sqrt(t)?", "`sweep.py --jobs=2`, 35 min",
        "slope of log std on log t: {:.2f} ± {:.2f} at delay 1, {:.2f} ± {:.2f} at 4, "
        "{:.2f} ± {:.2f} at 8, {:.2f} ± {:.2f} at 16",
        flat(both("sweep.py", (delay,), "slope of log std(L_t) on log t")
             for delay in ("1", "4", "8", "16")),
        "it does (2605.07331, second-hand)",
        position_verdict),
    Row("scale", "does the order hold at other sizes and lengths?",
        "`sweep.py --jobs=2`, 2 h with AVX-512",
        "mean accuracy over the run minus GSPO's with 0.3, 0.8 and 4.7 M parameters: `ctpo` "
        "{:+.2f}, {:+.2f}, {:+.2f} (15 tokens), {:+.2f}, {:+.2f}, {:+.2f} (23); `minpro` {:+.2f}, "
        "{:+.2f}, {:+.2f} (15), {:+.2f}, {:+.2f}, {:+.2f} (23)",
        tuple(Place("sweep.py", (size, terms, name), "mean over the run minus GSPO's")
              for name in ("CTPO", "MinPRO") for terms in ("4", "6")
              for size in ("0.3 M", "0.8 M", "4.7 M")),
        "CTPO ahead of GSPO at 4 B and at 14 B (2605.07331, second-hand)",
        "CTPO behind GSPO in every cell, on a one-decision task at one learning rate; which of 36 "
        "differences survives a correction depends on the test"),
    Row("baselines", "which baseline, from how many samples?",
        "`sweep.py --jobs=2`, 90 min of one core",
        "log of the gradient's noise with 4 samples over RLOO's, early: {:+.2f} ({:+.2f} to "
        "{:+.2f}, OTB), {:+.2f} ({:+.2f} to {:+.2f}, OTB of the sequence); mean sampled accuracy "
        "over the run of 16 prompts: {:.2f} (OTB, 4 samples), {:.2f} (RLOO, 4), {:.2f} (RLOO, 32)",
        (*flat(interval("sweep.py, noise", ("early", name), "log of noise over RLOO's, 4 samples")
               for name in ("OTB", "OTB of the sequence")),
         *(Place("sweep.py, training", (samples, name), "mean over the run")
           for name, samples in (("OTB", "4"), ("RLOO", "4"), ("RLOO", "32")))),
        "OTB with 4 samples trains as others with 32 (2602.07078, abstract)", baselines_verdict),
    Row("credit", "does credit land on the token that decides?", "`run.py`, 4 min",
        "cosine with the exact advantage, 16 completions: {:.2f} (`grpo`), {:.2f} (`otb`), "
        "{:.2f} (`tempo`; {:.2f} at the first token), {:.2f} (`gae`, exact values, lambda 0.95)",
        tuple(Place("run.py, alignment by condition", (name,), column) for name, column in (
            ("GRPO", "middle, completions differ"), ("OTB", "middle, completions differ"),
            ("TEMPO", "middle, completions differ"), ("TEMPO", "first token"),
            ("GAE(0.95), exact values", "middle, completions differ"))),
        "credit goes to the tokens where answers part (TEMPO, 2509.18314, second-hand)",
        "only after shared beginnings"),
    Row("distillation", "does credit from a trained policy teach in fewer tokens than the reward?",
        "`sweep.py --jobs=2`, 15 min",
        "mean sampled accuracy over the run minus that by reward, {:.0f} seeds: {:+.3f} "
        "(advantage), {:+.3f} (loss term)",
        (Place("sweep.py, verdicts", ("teacher, advantage",), "seeds of this sign", 1),
         *(Place("sweep.py, verdicts", (name,), "mean over the run, minus reward")
           for name in ("teacher, advantage", "teacher, loss term"))),
        "better than RL at a tenth of its cost (Qwen3, 2505.09388, second-hand)",
        distillation_verdict),
    Row("aggregation", "which weighting, where longer completions go wrong more often?",
        "`sweep.py --jobs=2`, 17 core-minutes",
        "mean sampled accuracy over the run: {:.2f} (`token`), {:.2f} (`sequence`), {:.2f} "
        "(`fixed`), {:.2f} (`balanced`); tokens at the end {:.1f}, {:.1f}, {:.1f}, {:.1f}",
        tuple(Place(f"sweep.py, {part}", (name,), column) for part, column in (
            ("comparison", "mean over the run"), ("lengths", "tokens at the end"))
            for name in ("token", "sequence", "fixed", "balanced")),
        "balanced best in 3 of 4 settings by accuracy (2605.04077, second-hand)",
        verdicts_of("aggregation")),
    Row("smollm2/lengths", "and do rewards for short answers shorten those of a language model?",
        "`sweep.py`, 2 core-hours",
        "tokens at the end, SmolLM2-135M-Instruct: {:.0f} (correct or not), {:.0f} (linear "
        "penalty), {:.0f} (GRPO-lambda); of the sampled answers {:.2f}, {:.2f}, {:.2f} are right",
        tuple(Place("sweep.py", (reward,), column)
              for column in ("tokens at the end", "right at the end") for reward in SHORT_REWARDS),
        "half as long and as accurate (GRPO-lambda, 2505.18086, abstract)",
        "shorter on both of 2 seeds with either; accuracy not decided"),
    Row("mismatch", "does the sampler's number format matter?", "`run.py`, 2 min; training: "
        "`sweep.py --jobs=2`, 1 core-hour",
        "{:.2%} of tokens outside [0.9, 1.1] in bfloat16, temperature 2; mean sampled accuracy of "
        "training minus the trainer's numerics: {:+.3f} (bfloat16), {:+.3f} (int8), {:+.3f} (noise "
        "of 2 on the logits)",
        (("2", "lines", 3, "all", "mismatch/outside"),
         *(Place("sweep.py, verdicts", (sampler, "nothing"), "mean over the run, difference")
           for sampler in ("bfloat16", "int8, bfloat16", "noise 2"))),
        "7.5 % of tokens, 0.5 B parameters (trl issue 6789, second-hand)",
        verdicts_of("mismatch", lambda row: " with ".join(row[:2]).removesuffix(" with nothing"))),
    Row("tools", "which ratio or baseline, with a tool?",
        "`sweep.py --jobs=2`, 1 core-hour",
        "mean sampled accuracy over the run: {:.2f} (`grpo`), {:.2f} (`tir_otb`), {:.2f} (`ctpo`), "
        "{:.2f} (`minpro`), {:.2f} (`gspo`)",
        tuple(Place("sweep.py, comparison", (name,), "mean over the run")
              for name in ("GRPO", "OTB", "CTPO", "MinPRO", "GSPO")),
        "CTPO ahead of GSPO with tools (2605.07331, second-hand)",
        verdicts_of("tools", lambda row: f"{row[0]} - {row[1]}")),
)
