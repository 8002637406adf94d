"""The claims, and the one cell that decides each of them: written before the map was run.

Rule for the step size, everywhere: each method at its best of the grid, by the mean final return
over the seeds of the map. Pairs with `more` get 64 further seeds at these steps.
"""

import dataclasses

from cells import KEPT, NONE, WIDE_CTPO, WIDE_GSPO

from jaxrl_llm.lab.arena.setting import Setting

FURTHER_SEEDS = tuple(range(16, 80))


@dataclasses.dataclass(frozen=True)
class Claim:
  """`first` ends higher than `second`.

  Attributes:
    table: of the primary cell; tables of the same two methods count as further conditions.
    age, noise: staleness (iterations) and engine noise of the primary cell.
    sign: 1 if `first` is claimed to be ahead; 0 if they are claimed to be equal.
    transformer: methods of the transformer's table whose difference is the same question.
  """

  text: str
  source: str
  first: str
  second: str
  table: str = "warm_256"
  age: int = 64
  noise: float = 0.0
  sign: int = 1
  more: bool = False
  transformer: tuple[str, str] | None = None


CLAIMS = (
    Claim("MinPRO is ahead of GRPO on old completions", "2601.22718", "minpro", "grpo", more=True,
          transformer=("minpro", "grpo")),
    Claim("MinPRO is ahead of CISPO on old completions", "2601.22718", "minpro", "cispo", more=True,
          transformer=("minpro", "cispo")),
    Claim("CISPO collapses on old completions, so that GRPO is ahead of it", "2601.22718", "grpo",
          "cispo", transformer=("grpo", "cispo")),
    Claim("GRPO's plateau on old completions is dropped gradient: its window with the gradient "
          "kept is ahead", "own", "cispo_window", "grpo"),
    Claim("CTPO is ahead of GSPO on long completions", "2605.07331", "ctpo", "gspo", "warm_1024",
          16, more=True, transformer=("ctpo", "gspo")),
    Claim("CTPO is ahead of GRPO", "2605.07331", "ctpo", "grpo", transformer=("ctpo", "grpo")),
    # Further seeds were added when the map had contradicted it and the transformer's table agreed.
    Claim("GSPO is ahead of GRPO", "2507.18071", "gspo", "grpo", age=16, more=True,
          transformer=("gspo", "grpo")),
    Claim("the full product of ratios collapses on long completions: CISPO is ahead", "common",
          "cispo", "seq_is", "warm_1024", 16, transformer=("cispo", "seq_is")),
    Claim("without a ratio, old completions mislead: CISPO is ahead", "common", "cispo", "none",
          "ending_256", 64, transformer=("cispo", "none")),
    Claim("the ratio of the prefix is needed: CTPO in a wide window is ahead of CISPO",
          "2605.07331", "ctpo_wide", "cispo"),
    Claim("DPPO-TV is ahead of GRPO", "2602.04879", "dppo_tv", "grpo", age=16),
    Claim("OTB with 4 completions does as well as RLOO with 32", "2602.07078", "otb_4", "rloo_32",
          "baselines", 0, sign=0),
    Claim("OTB with 4 completions is ahead of RLOO with 4", "2602.07078", "otb_4", "rloo_4",
          "baselines", 0),
    Claim("balanced aggregation is ahead of token where lengths differ with correctness",
          "2605.04077", "balanced", "token", "aggregation", 0),
    Claim("TEMPO's credit is ahead of GRPO's advantage", "2509.18314", "tempo", "grpo", "credit",
          0),
    Claim("engine noise breaks the full product of ratios: CISPO is ahead", "common", "cispo",
          "seq_is", "noise", 0, 1.0),
    Claim("with engine noise, truncated token weights are ahead of none", "common",
          "ppo_token_weight", "ppo_recomputed", "noise", 0, 1.0),
    Claim("the recomputed anchor is ahead of the sampler's, for GRPO", "common",
          "grpo_recomputed", "grpo", "anchors", 16),
)
# Named before the map, too: is one of our own ideas ahead of CISPO?
IDEAS_AGAINST = Claim("an idea of ours is ahead of CISPO", "own", "", "cispo", "ideas", 64)
WORDS = {NONE: "no ratio", KEPT: "CISPO with GRPO's window", WIDE_CTPO: "CTPO, window x 8",
         WIDE_GSPO: "GSPO, window x 100"}


def primary_task(claim: Claim) -> str:
  """Returns the task of the primary cell, for tables that hold both."""
  if claim.table.startswith(("ending", "aggregation")):
    return "ending"
  return Setting().task
