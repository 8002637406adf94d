"""Writes the tables of README.md from the recorded plans beside this file.

  python experiments/plans/render.py
"""

import json
from pathlib import Path

from experiments.planning import report
from experiments.tables_lib import page_parts

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


def number(x: float) -> str:
  return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def render(folder: Path = HERE) -> None:
  """Writes README.md of a folder; the plans are those beside this file."""
  text = "\n".join((page_parts.narrow_tables(SHARES, shares(), 2),
                    page_parts.narrow_tables(HEADER, rows(), 3)))
  page_parts.replace_part(folder / "README.md", "render.py", text)


if __name__ == "__main__":
  render()
