"""How much of an advantage lands on the token that decides?

  python experiments/credit/run.py            # what is missing, then the tables
  python experiments/credit/run.py --render   # the tables again, from the committed results
  python experiments/credit/run.py --cases='size_4;early' --methods='GRPO;TEMPO' --out=runs/credit

Writes results/<case>.json, the tables of README.md and by_position.png beside this file.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from experiments.papers.arca import planted_adapter
from experiments.papers.arca.planted_adapter import AdapterTraining
from experiments.tables_lib import planted
from experiments.tables_lib.compare import interval
from experiments.tables_lib.page_parts import narrow_tables, replace_part
from experiments.tables_lib.planted import Planted
from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.reporting.writers import write_atomically

HERE = Path(__file__).parent
SEEDS = tuple(range(10))
GROUPS = 400  # for each seed
SIZES = (4, 8, 16, 32, 64)
EARLY, MIDDLE, LATE = 0, 6, 11
SHARP = 4.0  # standard deviation of the logits; completions then share longer prefixes

METHODS = {
    "GRPO": (AdvantageConfig("grpo"), 0.0),
    "RLOO": (AdvantageConfig("rloo"), 0.0),
    "OPO": (AdvantageConfig("opo"), 0.0),
    "OTB": (AdvantageConfig("otb"), 0.0),
    "OTB, step": (AdvantageConfig("otb", weight="step"), 0.0),
    "OTB, leave one out": (AdvantageConfig("otb", leave_one_out=True), 0.0),
    "TEMPO": (AdvantageConfig("tempo"), 0.0),
    "GAE(1), exact values": (AdvantageConfig("gae", lam=1.0, whiten=False), 0.0),
    "GAE(0.95), exact values": (AdvantageConfig("gae", lam=0.95, whiten=False), 0.0),
    "GAE(0), exact values": (AdvantageConfig("gae", lam=0.0, whiten=False), 0.0),
    "GAE(0.95), values off by 0.1": (AdvantageConfig("gae", lam=0.95, whiten=False), 0.1),
    "GAE(0), values off by 0.1": (AdvantageConfig("gae", lam=0.0, whiten=False), 0.1),
}
BASE = Planted()
CASES = {f"size_{size}": (BASE, size) for size in SIZES} | {
    "early": (dataclasses.replace(BASE, position=EARLY), 16),
    "late": (dataclasses.replace(BASE, position=LATE), 16),
    "alike": (dataclasses.replace(BASE, scale=SHARP), 16),
    "alike_late": (dataclasses.replace(BASE, scale=SHARP, position=LATE), 16),
    "repaired": (dataclasses.replace(BASE, repair=0.1), 16),
}
# On policies that are trained through an adapter; completions of 12 tokens, decided in the middle.
ADAPTED = {f"rank_{rank}_after_{updates}": AdapterTraining(rank, updates)
           for rank in (1, 4, 16) for updates in (5, 20)}
CASES |= {name: (BASE, 16) for name in ADAPTED}
WEIGHTED = {
    "GRPO": (AdvantageConfig("grpo"), 0.0),
    "ARCA": (AdvantageConfig("arca"), 0.0),
    "ARCA's rule, surprisal": (AdvantageConfig("arca", signal="surprisal"), 0.0),
    "ARCA's rule, drop of entropy": (AdvantageConfig("arca", signal="entropy_drop"), 0.0),
    "ARCA's rule, reference gap": (AdvantageConfig("arca", signal="reference_gap"), 0.0),
}
PAIRS = [("ARCA", "GRPO"), *((name, "ARCA") for name in list(WEIGHTED)[2:])]
CONDITIONS = {"size_16": "middle, completions differ", "early": "first token", "late": "last token",
              "alike": "middle, completions alike", "alike_late": "last token, completions alike",
              "repaired": "middle, mended later"}


def measure(name: str, method: str) -> dict[str, list]:
  """Returns share, alignment and by_position of a method in a case, a value for each seed."""
  (case, size), (advantage, error) = CASES[name], methods_of(name)[method]
  landings = []
  for seed in SEEDS:
    one = dataclasses.replace(case, seed=seed)
    scored = planted_adapter.train(one, ADAPTED[name], seed) if name in ADAPTED else None
    landings.append(planted.landing(one, advantage, planted.Groups(size, GROUPS, seed), error,
                                 scored))
  return {field.name: [getattr(one, field.name) for one in landings]
          for field in dataclasses.fields(planted.Landing)}


def methods_of(name: str) -> dict:
  """The methods that are measured in a case."""
  return WEIGHTED if name in ADAPTED else METHODS


def complete(name: str, methods: list[str], folder: Path) -> dict[str, dict]:
  """Measures the methods that a case's file lacks; returns what it then holds."""
  path = folder / "results" / f"{name}.json"
  path.parent.mkdir(parents=True, exist_ok=True)
  results = json.loads(path.read_text()) if path.exists() else {}
  for method in methods:
    if method in methods_of(name) and method not in results:
      results[method] = measure(name, method)
      write_atomically(path, json.dumps(results, indent=1) + "\n")
  print(name, "done", flush=True)
  return results


def table(results: dict[str, dict], columns: dict[str, str], field: str) -> str:
  """A line for each method that all cases have, a column for each case: mean and 95 % interval."""
  rows = [(method, *(interval(results[name][method][field]) for name in columns))
          for method in METHODS | WEIGHTED if all(method in results[name] for name in columns)]
  return narrow_tables(("method", *columns.values()), rows)


def differences(results: dict[str, dict], columns: dict[str, str]) -> str:
  """A line for each pair of PAIRS: the alignment of the first minus that of the second, paired."""
  rows = [(f"{one} - {other}",
           *(interval(np.subtract(results[name][one]["alignment"],
                                  results[name][other]["alignment"])) for name in columns))
          for one, other in PAIRS]
  return narrow_tables(("pair", *columns.values()), rows)


def figure(results: dict[str, dict], path: Path) -> None:
  """Mean |advantage| by position, of the case with 16 completions."""
  figure, axes = plt.subplots(figsize=(6.4, 3.6))
  for method in ("GRPO", "OTB", "TEMPO", "GAE(0.95), exact values", "GAE(0), exact values"):
    axes.plot(np.mean(results["size_16"][method]["by_position"], 0), marker="o", label=method)
  axes.axvline(MIDDLE, color="0.8", zorder=0)
  axes.set(xlabel="position of the token; the grey one decides", ylabel="share of |advantage|")
  axes.legend(fontsize=8)
  figure.tight_layout()
  figure.savefig(path, dpi=120)
  plt.close(figure)


def render(folder: Path) -> None:
  """Writes the tables and the figure from the committed results into `folder`."""
  results = {name: json.loads((HERE / "results" / f"{name}.json").read_text()) for name in CASES}
  by_adapter = {name: f"rank {one.rank}, {one.updates} updates" for name, one in ADAPTED.items()}
  by_size = {f"size_{size}": f"{size} completions" for size in SIZES}
  for part, columns, field in (("share by size", by_size, "share"),
                               ("alignment by size", by_size, "alignment"),
                               ("alignment by condition", CONDITIONS, "alignment"),
                               ("share with adapters", by_adapter, "share"),
                               ("alignment with adapters", by_adapter, "alignment")):
    replace_part(folder / "README.md", f"run.py, {part}", table(results, columns, field))
  replace_part(folder / "README.md", "run.py, differences with adapters",
               differences(results, by_adapter))
  figure(results, folder / "by_position.png")


def chosen(text: str, allowed: dict) -> list[str]:
  """The names of a flag, separated by semicolons, because some hold commas."""
  names = text.split(";") if text else list(allowed)
  for name in names:
    if name not in allowed:
      raise SystemExit(f"error: {name}: allowed are {'; '.join(allowed)}. Fix: one of them.")
  return names


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--render", action="store_true", help="only write the tables again")
  parser.add_argument("--cases", default="", help="some of them, such as size_4;early")
  parser.add_argument("--methods", default="", help="some of them, such as GRPO;TEMPO")
  parser.add_argument("--out", type=Path, help="folder of results of your own, shown at the end")
  flags = parser.parse_args()
  cases, methods = chosen(flags.cases, CASES), chosen(flags.methods, METHODS | WEIGHTED)
  if flags.render and flags.out:
    parser.error("--render takes no --out")
  if not flags.render:
    results = {name: complete(name, methods, flags.out or HERE) for name in cases}
  if flags.out:
    print(table(results, {name: name for name in cases}, "alignment"))
  elif cases == list(CASES) and methods == list(METHODS | WEIGHTED):
    render(HERE)


if __name__ == "__main__":
  main()
