"""Writes the tables of README.md, and what recipes' headers quote, from the recorded plans.

  python experiments/plans/render.py
"""

import json
import re
from pathlib import Path

from experiments.planning import report
from experiments.tables_lib import page_parts
from jaxrl_llm.store.files import write_atomically

HERE = Path(__file__).parent
HEADER = ("plan", "target", "program", "GB each, total", "collectives, GB", "memory traffic, TB",
          "compute, s", "memory, s", "interconnect, s", "in turn, s", "MFU, %")


def rows() -> list[tuple]:
  """Returns a row for each program of each recorded plan; work is that of one run of it."""
  lines = []
  for path in sorted(HERE.glob("*.json")):
    plan = json.loads(path.read_text())
    for program in plan["programs"]:
      seconds, run = program["seconds"], program["run"]
      lines.append((path.stem, plan["target"], program["name"],
                    *map(number, (program["bytes"]["total"] / 1e9, run["collective_bytes"] / 1e9,
                                  run["memory_bytes"] / 1e12, seconds["compute"],
                                  seconds["memory"], seconds["interconnect"])),
                    in_turn(seconds), number(100 * program["mfu"])))
  return lines


def in_turn(seconds: dict) -> str:
  """The sum over instructions; older plans have none."""
  return number(sum(seconds["in_turn"].values())) if "in_turn" in seconds else "-"


SHARES = ("plan", "target", "mean length", "iteration, s", "prefill, s", "decode, s", "score, s",
          "step, s", "decode, %", "decode reads over weights and cache",
          "over what its tokens need")


def shares() -> list[tuple]:
  """Returns a row for each plan with all programs of an iteration: where its seconds go."""
  lines = []
  for path in sorted(HERE.glob("*.json")):
    plan = json.loads(path.read_text())
    programs = {program["name"]: program for program in plan["programs"]}
    if path.stem.startswith("plain") or not {"decode", "step"} <= programs.keys():
      continue  # its decoding was counted wrongly, see README.md
    seconds = {name: program["runs_per_iteration"] * report.longest(program["seconds"])
               for name, program in programs.items()}
    total, decode = sum(seconds.values()), programs["decode"]
    reads = decode["per_token_step"][-1]["memory_bytes"]
    arguments = decode["bytes"]["parameters"] + decode["bytes"]["cache"]
    parts = (number(seconds[name]) if name in seconds else "-"
             for name in ("prefill", "decode", "score", "step"))
    needs = decode.get("needs_per_token_step")
    lines.append((path.stem, plan["target"], f"{plan.get('mean_length', 1.0):g}", number(total),
                  *parts, number(100 * seconds["decode"] / total), number(reads / arguments),
                  number(reads / needs) if needs else "-"))
  return lines


# Machines, with the recipe for each and the flags that differ from it; None: not planned.
LADDER = (
    ("2 cores of a CPU", None, "smollm2_135m", "-"),
    ("one TPU chip", "qwen25_0_5b_gsm8k", "qwen25_0_5b_gsm8k", "-"),
    ("one GPU", "qwen25_0_5b_gsm8k_on_h100", "qwen25_0_5b_gsm8k", "-"),
    ("8 chips v5e", "qwen25_0_5b_gsm8k_on_v5e8", "qwen25_0_5b_gsm8k", "-"),
    ("two slices of these", "qwen25_0_5b_gsm8k_on_two_v5e8", "qwen25_0_5b_gsm8k",
     "updates.micro_batches=4"),
    ("8 GPUs of a host", "qwen3_4b_ctpo_deepscaler_on_h100", "qwen3_4b_ctpo_deepscaler",
     "updates.token_budget=0 updates.micro_batches=32 model.remat=full rollout.slots=128"),
    ("8 chips v5p, 2 hosts", "qwen3_4b_ctpo_deepscaler", "qwen3_4b_ctpo_deepscaler", "-"),
    ("64 chips v5e, 16 hosts", "qwen3_4b_ctpo_v5e64", "qwen3_4b_ctpo_v5e64", "-"),
    ("the same, mean length .4", "short_packed_v5e64", "qwen3_4b_ctpo_v5e64", "-"),
)
MACHINES = ("machine", "planned for", "recipe in configs/", "--config. flags beside it",
            "GB a device", "iteration, s", "decode, %", "100 of them, h")
MEASURED = ("measured", "8.4", "14", "-", "0.4")  # smollm2/README.md: 80 iterations in 19:12


def ladder() -> list[tuple]:
  """Returns a row for each machine of from_laptop_to_pod.md."""
  lines = []
  for machine, name, recipe, changes in LADDER:
    if name is None:
      lines.append((machine, MEASURED[0], recipe, changes, *MEASURED[1:]))
      continue
    plan = json.loads((HERE / f"{name}.json").read_text())
    seconds = {program["name"]: program["runs_per_iteration"] * report.longest(program["seconds"])
               for program in plan["programs"]}
    total = sum(seconds.values())
    most = max(program["bytes"]["total"] for program in plan["programs"])
    lines.append((machine, plan["target"], recipe, changes, f"{number(most / 1e9)} of "
                  f"{plan['chip']['memory'] / 1e9:.0f}", number(total),
                  number(100 * seconds["decode"] / total), number(100 * total / 3600)))
  return lines


def number(x: float) -> str:
  return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def render(folder: Path = HERE) -> None:
  """Writes README.md of a folder; the plans are those beside this file."""
  text = "\n".join((page_parts.narrow_tables(SHARES, shares(), 2),
                    page_parts.narrow_tables(HEADER, rows(), 3)))
  page_parts.replace_part(folder / "README.md", "render.py", text)


def render_ladder(page: Path = HERE.parent / "launch/from_laptop_to_pod.md") -> None:
  """Writes the table of machines."""
  text = page_parts.narrow_tables(MACHINES, ladder(), 2)
  page_parts.replace_part(page, "render.py, ladder", text)


def quote(folder: Path = HERE.parents[1] / "configs") -> None:
  """Writes into the header of each recipe in a folder what its plans say, each for its target."""
  for path in sorted(HERE.glob("*.json")):
    plan = json.loads(path.read_text())
    head = f"Planned for {re.escape(plan['target'])}, "
    begin = re.compile(head + r".*:\n(?:  \S+ +\S+ GB each.*\n)+")
    recipe = folder / f"{path.stem.partition('_on_')[0]}.py"
    if recipe.exists():
      text = recipe.read_text()
      write_atomically(recipe, begin.sub(lambda _, plan=plan: report.summary(plan) + "\n", text))


if __name__ == "__main__":
  render()
  render_ladder()
  quote()
