"""The toys of one paper each, for matrix.py: numbers come from the committed results, the sentences
around them are written here.
"""

from table_row import Row, both, flat

from experiments.tables_lib.page_parts import Place

BATCH = "96 prompts, 200 iterations"
MEAN_CHANGE = "mean accuracy minus GRPO's"
REGRET = "regret, % of the value a day"

ROWS = (
    Row("length_bands", "does a paid band of lengths keep the content?",
        "`sweep.py --jobs=2`, 20 min beside other work",
        "inside the band {:.0f} % before, {:.0f} ± {:.0f} % after (of sampled copies {:.0f} ± "
        "{:.0f} %); content {:.0f} %",
        (Place("sweep.py", (BATCH, "held-out, greedy, before"), "inside the band, %"),
         *both("sweep.py", (BATCH, "held-out, greedy, after"), "inside the band, %"),
         *both("sweep.py", (BATCH, "sampled, last iteration"), "inside the band, %"),
         Place("sweep.py", (BATCH, "held-out, greedy, after"), "content right, %")),
        "it does in translation (HOMURA, 2601.10187)", "agrees on copies"),
    Row("pipo", "do extra optimizer steps or resampling pay per token?",
        "`sweep.py --jobs=2`, under 90 min",
        "thousands of tokens until 90 %: {:.1f} ± {:.1f} (`grpo`), {:.1f} ± {:.1f} (`pipo`), "
        "{:.1f} ± {:.1f} (twice the steps), {:.1f} ± {:.1f} (dynamic sampling)",
        flat(both("sweep.py", ("32 groups of 8", name), "tokens until 90 %, thousands")
             for name in ("GRPO", "PIPO", "GRPO, twice the steps", "dynamic sampling")),
        "PIPO gains 0.9 to 2.8 points (2604.00860 v5, second-hand)",
        "no gain; twice the steps do, at the one learning rate that was run"),
    Row("arca", "does credit by adapters speed up their training?", "`toy.py`",
        "mean accuracy minus that of `grpo`: {:+.3f} ± {:.3f} (rank 1), {:+.3f} ± {:.3f} (rank 8)",
        flat(both("toy.py", (rank, "ARCA"), MEAN_CHANGE) for rank in ("1", "8")),
        "competitive at equal rank (2606.00257, abstract)",
        "no difference; of the five runs in ten in which `grpo` learns, later in three, not at all "
        "in two",
        commit="3a19fbc"),
    Row("occ", "how much of a second head's gradient should the trunk get?",
        "`toy.py`, 26 min of one core",
        "accuracy minus that of no gradient: {:+.1f} ± {:.1f} points (cross-entropy), {:+.1f} ± "
        "{:.1f} (policy gradient), {:+.1f} ± {:.1f} (calibrated)",
        flat(both("toy.py, outcome", (f"`{name}`",), "accuracy - that of `detach`")
             for name in ("ce", "policy", "occ")),
        "-11.2, -1.5 and +2.8 points (2605.28184, second-hand)", "not tested: nothing was learnt",
        commit="37ce82e"),
    Row("number_tokens", "do number tokens help to compare and add?", "`sweep.py --jobs=2`, 15 min",
        "right where the longer is smaller: {:.0f} ± {:.0f} % as characters, "
        "{:.0f} ± {:.0f} % with group tokens",
        flat(both("sweep.py", (name,), "longer is smaller")
             for name in ("characters", "vocabulary")),
        "no experiment is published (2604.11582)",
        "paired by seed +14.9 points, 5 of 5 seeds; adding was not learnt"),
    Row("judges", "does deleting a judge's cycles rank better?", "`toy.py`",
        "rank correlation against net wins: {:+.3f} ± {:.3f} (1 in 10 verdicts reversed), "
        "{:+.3f} ± {:.3f} (logistic)",
        tuple(("tournaments", judge, field)
              for judge in ("1 in 10 reversed", "logistic, scale 1")
              for field in ("gain", "gain_half_width")),
        "it does (2510.15514)", "depends on how the judge errs",
        commit="0f21b01"),
    Row("soft_tokens", "does RL through soft thoughts teach?", "`run.py`, 17 min beside other work",
        "greedy accuracy {:+.0f} ± {:.0f} points (hard), {:+.0f} ± {:.0f} (fuzzy), {:+.0f} ± "
        "{:.0f} (soft); pass@32 soft less hard {:+.0f} ± {:.0f}",
        (*flat(both("run.py, gains", (name,), "hard greedy") for name in ("hard", "fuzzy", "soft")),
         *both("run.py, differences", ("soft - hard",), "pass@32, hard sampled")),
        "as good as hard in pass@1, better in pass@32 (2509.19170)",
        "soft is behind hard on 5 of 5 seeds, not decided; not shown to come from the thoughts",
        commit="8787a00"),
    Row("tvm", "do labels of shared prefixes make better values?", "`toy.py`, 7 min",
        "squared error minus that of outcome labels {:+.4f} ± {:.4f}; step beam search {:.2f} ± "
        "{:.2f}, one sample {:.2f}",
        (*both("toy.py, fit", ("prefix - outcome",), "squared error"),
         *both("toy.py, trained", ("step beam search, K = 8, b = 2",), "accuracy"),
         Place("toy.py, trained", ("one sample",), "accuracy")),
        "they do (2407.12863; numbers unconfirmed)", "labels not decided; search pays",
        commit="261b1ed"),
    Row("critical_tokens", "does weighing critical tokens help DPO?", "`toy.py`, 9 min",
        "sampled accuracy {:.2f} ± {:.2f} (DPO), {:.2f} ± {:.2f} (RPO), {:.2f} ± {:.2f} (cDPO), "
        "{:.2f} ± {:.2f} (the same weight on every rejected token)",
        flat(both("toy.py, trained", (name,), "accuracy, sampled")
             for name in ("DPO", "RPO", "cDPO", "DPO, rejected tokens weighed alike")),
        "cDPO above RPO above DPO (2411.19943)",
        "agrees on DPO (unstable at this learning rate), not on RPO; not due to which tokens",
        commit="261b1ed"),
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
        "below chance, too",
        commit="e6b7057"),
    Row("budgets", "which layers can spare channels?", "`run.py`",
        "loss minus that of equal shares {:+.3f} ± {:.3f} (policy), {:+.3f} ± {:.3f} (with the "
        "curriculum), {:+.3f} ± {:.3f} (random search)",
        flat(both("run.py, losses", (name,), "loss - uniform's")
             for name in ("policy, no curriculum", "policy, curriculum", "random search")),
        "a policy finds better shares than a search (2511.18977)",
        "better than equal shares without the curriculum, not decided with it; not better than "
        "random search",
        commit="6a0bbab"),
    Row("portfolio", "does a policy learn which headlines to believe?", "`toy.py`, 1 min of a core",
        "on simulated headlines, regret in % of the value a day: {:.2f} ± {:.2f} (before {:.2f}, "
        "every score kept {:.2f}); informative kept {:.0f} %, adversarial flipped {:.0f} % (before "
        "{:.0f} and {:.0f} %)",
        (*both("toy.py, regret", ("learnt, `grpo`",), REGRET),
         *(Place("toy.py, regret", (name,), REGRET)
           for name in ("evenly drawn (before)", "every score kept")),
         *(Place("toy.py, regret", (name,), column)
           for name in ("learnt, `grpo`", "evenly drawn (before)")
           for column in ("informative kept, %", "adversarial flipped, %"))),
        "Sharpe ratio .7026 without, .7102 with sentiment (2508.16378 v2, second-hand)",
        "not tested: real headlines hold no signal; the planted one is kept, its opposite flipped",
        commit="cf3677c"),
)
