"""What SmolLM2 says of each of the twenty systems: a list on this folder's page.

  python experiments/smollm2/systems.py

Read from what the other commands of this folder have measured. Methods were trained against each
other on three seeds, which decide nothing (old_rollouts/), so that a verdict is on a paper's
premise: *holds* or *fails* by the rule beside it below, or *not tried here*, and then the toy's
page says what is known.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.smollm2.lengths import sweep
from experiments.tables_lib import sweep_results
from experiments.tables_lib.page_parts import replace_part

HERE = Path(__file__).parent
NAME = "experiments/smollm2/systems.py"
ALIKE = 0.02  # difference of shares of weight below which two aggregations are alike
HIGH, ORTHOGONAL, DEEP = 0.9, 0.1, 32  # rank correlation, distance from 1, position in a row
HALF, NEAR = 0.5, 0.1  # slope of independent log-ratios, distance from it
SHORTER, COST = 0.1, 0.1  # share of a completion's tokens, and accuracy that saving it may cost


class Finding(NamedTuple):
  """What was measured, and whether the premise holds."""

  text: str
  holds: bool


class System(NamedTuple):
  """A paper's system.

  Attributes:
    name: with the arXiv id.
    page: of its toy, below experiments/.
    premise: whose verdict the rule gives; empty where nothing was measured.
    measured: the file of this folder, and the rule.
  """

  name: str
  page: str
  premise: str = ""
  measured: tuple[str, Callable[[dict], Finding]] | None = None


def law(of: dict) -> Finding:
  """Holds where log deviation over log t has a slope within NEAR of HALF, policies one update
  apart.
  """
  slope = of["1"]["slope"]
  return Finding(f"slope of the deviation over t {slope:.2f}, one update apart",
                 abs(slope - HALF) <= NEAR)


def minimum(of: dict) -> Finding:
  """Holds where the product's spread is larger than the smallest ratio's fall, deep in a row."""
  at = of["8"]["positions"][str(DEEP)]
  return Finding(f"at t = {DEEP}, eight updates apart: product's log deviates by "
                 f"{at['deviation']:.2f}, the smallest log-ratio averages {at['minimum']:.2f}",
                 abs(at["minimum"]) < at["deviation"])


def energy(of: dict) -> Finding:
  """Holds where the interval of the rank correlation lies above HIGH and a prefix's gradient has
  the norm of its tokens' sum to ORTHOGONAL.
  """
  ratios = [prefix["over_sum"] for prefix in of["prefixes"].values()]
  return Finding(f"rank correlation {of['correlation']['value']:.2f}, prefix over sum "
                 f"{min(ratios):.2f} to {max(ratios):.2f}",
                 of["correlation"]["low"] > HIGH and max(abs(x - 1) for x in ratios) <= ORTHOGONAL)


def tail(of: dict) -> Finding:
  """Holds where the mean difference of the rarest sampled tokens leaves out 0 from below, and they
  move more than the likeliest.
  """
  first, last = of["int8_weights"]["buckets"][0], of["int8_weights"]["buckets"][-1]
  rule = of["int8_weights"]["min_p"]["e^-13"]
  return Finding(f"rarest tokens {first['mean']:+.2f} ± {first['half_width']:.2f} nats, mean abs "
                 f"{first['absolute'] / last['absolute']:.0f} times the likeliest's; min_p e^-13 "
                 f"removes {rule['of_mismatch']:.1%} of the gap",
                 first["mean"] + first["half_width"] < 0 and first["absolute"] > last["absolute"])


def lengths(of: dict) -> Finding:
  """Holds where token and sequence give right answers shares of weight that differ by ALIKE."""
  at = of["weights"]["8"]
  return Finding(f"right answers have {at['token']:.1%} of the weight by token, "
                 f"{at['sequence']:.1%} by sequence, {at['balanced']:.1%} balanced",
                 abs(at["token"] - at["sequence"]) >= ALIKE)


def tree(of: dict) -> Finding:
  """Holds where most tokens have a prefix that another completion of a group of 8 has."""
  share = of["shared"]["8"]["all"]
  return Finding(f"{share:.0%} of the tokens have a shared prefix (groups of 8)", share > HALF)


def count(seeds: list[dict]) -> Finding:
  """Holds where on each seed R² of the probe after the final norm lies above HIGH, and its rounded
  value is right twice as often as the digits' logits.
  """
  r_squared = [seed["layers"][-1]["r_squared"] for seed in seeds]
  probe = [seed["layers"][-1]["rounded"] for seed in seeds]
  logits = [seed["modes"]["as loaded"]["restricted"] for seed in seeds]
  return Finding(f"R² {min(r_squared):.2f} to {max(r_squared):.2f}; right: probe {min(probe):.0%} "
                 f"to {max(probe):.0%}, the digits' logits {min(logits):.0%} to {max(logits):.0%}",
                 min(r_squared) > HIGH and all(x > 2 * y for x, y in zip(probe, logits,
                                                                         strict=True)))


def shorter(runs: dict[str, dict]) -> Finding:
  """Holds where on each seed GRPO-lambda's completions end shorter than the plain reward's by a
  share of SHORTER or more, and its sampled accuracy lower by COST at most.
  """
  def ends(reward, kind):
    return np.array([runs[sweep.cell(reward, seed).name]["measured"][kind][-1]
                     for seed in sweep.SEEDS])

  saved = 1 - ends("GRPO-lambda", "length") / ends("correct or not", "length")
  gained = ends("GRPO-lambda", "sampled") - ends("correct or not", "sampled")
  return Finding(f"{min(saved):.0%} to {max(saved):.0%} fewer tokens than with the plain reward, "
                 f"sampled accuracy {min(gained):+.2f} to {max(gained):+.2f}",
                 bool(all(saved >= SHORTER) and all(gained >= -COST)))


SYSTEMS = (
    System("CTPO, 2605.07331", "arena", "log-ratios add up as independent ones do",
           ("prefix_ratios", law)),
    System("MinPRO, 2601.22718", "arena", "the smallest earlier ratio is tamer than the product",
           ("prefix_ratios", minimum)),
    System("OTB, 2602.07078", "baselines", "the proxy orders gradients, which are orthogonal",
           ("token_energy", energy)),
    System("DVP, 2512.23087", "mismatch", "the tail is biased and moves most", ("mismatch", tail)),
    System("balanced aggregation, 2605.04077", "aggregation",
           "right and wrong answers weigh unequally", ("groups", lengths)),
    System("TEMPO, 2509.18314", "credit", "completions of a group share prefixes",
           ("groups", tree)),
    System("GRPO-lambda, 2505.18086", "smollm2/lengths",
           "short right answers can be rewarded at little cost", ("lengths", shorter)),
    System("tool-integrated reasoning", "tools"),
    System("PIPO, 2604.00860", "papers/pipo"), System("ARCA, 2606.00257", "papers/arca"),
    System("OCC, 2605.28184", "papers/occ"),
    System("soft tokens, 2509.19170", "papers/soft_tokens"),
    System("TVM, 2407.12863", "papers/tvm"), System("cDPO, 2411.19943", "papers/critical_tokens"),
    System("number tokens, 2604.11582", "papers/number_tokens"),
    System("counting, 2605.03258", "papers/counting", "the state has the count, the head does not",
           ("counting", count)),
    System("HOMURA, 2601.10187", "length_bands"), System("judges, 2510.15514", "papers/judges"),
    System("FastForward, 2511.18977", "papers/budgets"),
    System("mean-variance portfolio, 2508.16378", "papers/portfolio"),
)


def stored(name: str) -> dict | list[dict]:
  """Returns what <name>.json holds, the runs of the folder <name> by name, or each seed of it."""
  if (HERE / f"{name}.json").is_file():
    return json.loads((HERE / f"{name}.json").read_text())
  if (HERE / name / "results.jsonl").is_file():
    return sweep_results.read(HERE / name)
  return [json.loads(file.read_text()) for file in sorted((HERE / name).glob("results/*.json"))]


def item(system: System) -> str:
  """Returns a system's line of the list."""
  assert system.measured is not None
  file, rule = system.measured
  finding = rule(stored(file))
  verdict = "Holds" if finding.holds else "Fails"
  return f"- {link(system)}: {system.premise}. **{verdict}**: {finding.text}."


def link(system: System) -> str:
  """Returns a system's name, which leads to its toy's page."""
  return f"[{system.name}](../{system.page}/README.md)"


def text() -> str:
  """Returns the list: premises that fail first, and what was not tried."""
  items = [item(system) for system in SYSTEMS if system.measured]
  items.sort(key=lambda line: "**Fails**" not in line)
  others = ",\n".join(link(system) for system in SYSTEMS if not system.measured)
  return "\n".join((*items, f"\nNot tried here:\n{others}.\n"))


if __name__ == "__main__":
  replace_part(HERE / "README.md", NAME, text())
