"""The claims, and the cells that decide each of them.

A claim's primary is the mean over the cells of its condition: every staleness, length and task of
its tables. Until the map had been seen it was one cell (`table`, `age`, `noise`), named before the
map was run; page.py still shows that cell.

Rule for the learning rate: each method at its best of the grid, by the mean final return
over the seeds of the map. FRESH_SEEDS are run at these steps.
"""

import dataclasses

from cells import KEPT, NONE, WIDE_CTPO, WIDE_GSPO

from experiments.tables_lib.arena.setting import Setting

MAP = ("warm_64", "warm_256", "warm_1024", "ending_64", "ending_256", "ending_1024")
TERMINAL, REPLAY = ("terminal",), ("replay",)
# The tables whose claims get FRESH_SEEDS, by the file of these seeds.
ASKED_AFRESH = {"fresh": MAP, "terminal_fresh": TERMINAL, "replay_fresh": REPLAY}
FURTHER_SEEDS = tuple(range(16, 80))
FRESH_SEEDS = tuple(range(128, 160))
MARGIN = 0.02  # share of the optimum by which "as good as" lets the first method be behind


@dataclasses.dataclass(frozen=True)
class Claim:
  """`first` has a higher return than `second`, or one that is lower by less than `margin`.

  Attributes:
    tables: the claim's condition: all cells of these tables in which both methods ran.
    shortest: tokens of a completion, of the cells that count.
    table, age, noise: the one cell named before the map; `noise` is part of the condition.
    more: whether that cell has FURTHER_SEEDS.
    transformer: methods of the transformer's table whose difference is the same question.
  """

  text: str
  source: str
  first: str
  second: str
  table: str = "warm_256"
  age: int = 64
  noise: float = 0.0
  tables: tuple[str, ...] = MAP
  shortest: int = 0
  margin: float = 0.0
  more: bool = False
  transformer: tuple[str, str] | None = None


CLAIMS = (
    Claim("CISPO ahead of GRPO", "not 2601.22718", "cispo", "grpo",
          transformer=("cispo", "grpo")),
    Claim("CISPO ahead of no ratio", "common", "cispo", "none", "ending_256",
          transformer=("cispo", "none")),
    Claim("MinPRO ahead of GRPO", "2601.22718", "minpro", "grpo", more=True,
          transformer=("minpro", "grpo")),
    Claim("MinPRO ahead of CISPO", "2601.22718", "minpro", "cispo", more=True,
          transformer=("minpro", "cispo")),
    Claim("CTPO ahead of GRPO", "2605.07331", "ctpo", "grpo", transformer=("ctpo", "grpo")),
    # Further seeds were added when the map had contradicted it and the transformer's table agreed.
    Claim("GSPO ahead of GRPO", "2507.18071", "gspo", "grpo", age=16, more=True,
          transformer=("gspo", "grpo")),
    Claim("CTPO ahead of GSPO", "2605.07331", "ctpo", "gspo", "warm_1024", 16, more=True,
          transformer=("ctpo", "gspo")),
    Claim("CTPO ahead of GSPO, 256 tokens and more", "2605.07331", "ctpo", "gspo", "warm_1024", 16,
          shortest=256, more=True),
    Claim("full product behind CISPO, 256 and more", "common", "cispo", "seq_is", "warm_1024", 16,
          shortest=256),
    Claim("GRPO's window, gradient kept: ahead of it", "own", "cispo_window", "grpo"),
    Claim("CTPO in a wide window ahead of CISPO", "2605.07331", "ctpo_wide", "cispo"),
    Claim("DPPO-TV ahead of GRPO", "2602.04879", "dppo_tv", "grpo", age=16),
    Claim("KPop as good as CISPO", "own", "kpop", "cispo", margin=MARGIN),
    Claim("OTB with 4 as good as RLOO with 32", "2602.07078", "otb_4", "rloo_32", "baselines", 0,
          tables=("baselines",), margin=MARGIN),
    Claim("OTB with 4 ahead of RLOO with 4", "2602.07078", "otb_4", "rloo_4", "baselines", 0,
          tables=("baselines",)),
    Claim("balanced ahead of token, unequal lengths", "2605.04077", "balanced", "token",
          "aggregation", 0, tables=("aggregation",)),
    Claim("TEMPO's credit ahead of GRPO's", "2509.18314", "tempo", "grpo", "credit", 0,
          tables=("credit",)),
    Claim("full product behind CISPO under noise", "common", "cispo", "seq_is", "noise", 0, 1.0,
          tables=("noise",)),
    Claim("token weights ahead of none under noise", "common", "ppo_token_weight",
          "ppo_recomputed", "noise", 0, 1.0, tables=("noise",)),
    Claim("recomputed anchor ahead of the sampler's", "common", "grpo_recomputed", "grpo",
          "anchors", 16, tables=("anchors",)),
    # Written before the table `terminal` was run. GRPO on sequences is the paper's, with a pull to
    # the policy that sampled.
    Claim("TPO ahead of GRPO on sequences", "2604.06159", "tpo", "grpo_sequence", "terminal", 0,
          tables=TERMINAL),
    Claim("TPO ahead of GRPO on tokens, 4 epochs", "own", "tpo", "grpo", "terminal", 0,
          tables=TERMINAL),
    Claim("TPO ahead of its scalar weights", "2604.06159", "tpo", "group_pg", "terminal", 0,
          tables=TERMINAL),
    Claim("TPO's anchor: ahead of none", "2604.06159", "tpo", "tpo_without_anchor", "terminal", 0,
          tables=TERMINAL),
    Claim("pull to the snapshot: ahead of none", "2604.06159", "grpo_sequence", "grpo_no_pull",
          "terminal", 0, tables=TERMINAL),
    Claim("equal groups kept: ahead of masked, GRPO", "2604.06159", "grpo_sequence",
          "grpo_drop_equal", "terminal", 0, tables=TERMINAL),
    Claim("equal groups kept: ahead of masked, TPO", "own", "tpo", "tpo_drop_equal", "terminal", 0,
          tables=TERMINAL),
    Claim("TPO by the mean ahead of the sum, 32 tokens", "own", "tpo_mean", "tpo", "terminal", 0,
          tables=TERMINAL, shortest=32),
    # Written before the table `replay` was run.
    Claim("mixed ages: CISPO ahead of GRPO", "own", "cispo", "grpo", "replay", 16, tables=REPLAY),
    Claim("mixed ages: CISPO ahead of no ratio", "own", "cispo", "none", "replay", 16,
          tables=REPLAY),
    Claim("mixed ages: MinPRO ahead of CISPO", "own", "minpro", "cispo", "replay", 16,
          tables=REPLAY),
)
# Named before the map, too: is one of our own ideas ahead of CISPO?
IDEAS_AGAINST = Claim("an idea of ours is ahead of CISPO", "own", "", "cispo", "ideas", 64)
WORDS = {NONE: "no ratio", KEPT: "CISPO with GRPO's window", WIDE_CTPO: "CTPO, window x 8",
         WIDE_GSPO: "GSPO, window x 100"}


def primary_task(claim: Claim) -> str:
  """Returns the task of the cell named before the map, for tables that hold several."""
  if claim.table.startswith(("ending", "aggregation")):
    return "ending"
  if claim.table == "terminal":
    return "sparse"
  return Setting().task
