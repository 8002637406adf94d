"""Writes the tables of README.md from the recorded plans beside this file.

  python experiments/plans/render.py
"""

import json
from pathlib import Path

from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
HEADER = ("plan", "target", "program", "GB each, total", "collectives, GB", "memory traffic, TB",
          "compute, s", "memory, s", "interconnect, s", "MFU, %")


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
                                  seconds["memory"], seconds["interconnect"],
                                  100 * program["mfu"]))))
  return lines


SHARES = ("plan", "target", "iteration, s", "prefill, %", "decode, %", "score, %", "step, %",
          "decode reads over its weights and cache")


def shares() -> list[tuple]:
  """Returns a row for each plan with all programs of an iteration: where its seconds go."""
  lines = []
  for path in sorted(HERE.glob("*.json")):
    plan = json.loads(path.read_text())
    programs = {program["name"]: program for program in plan["programs"]}
    if path.stem.startswith("plain") or not {"decode", "step"} <= programs.keys():
      continue  # its decoding was counted wrongly, see README.md
    seconds = {name: program["runs_per_iteration"] * program["seconds"][program["seconds"]["binds"]]
               for name, program in programs.items()}
    total, decode = sum(seconds.values()), programs["decode"]
    needed = decode["bytes"]["parameters"] + decode["bytes"]["cache"]
    over = decode["per_token_step"][-1]["memory_bytes"] / needed
    percent = (number(100 * seconds[name] / total) if name in seconds else "-"
               for name in ("prefill", "decode", "score", "step"))
    lines.append((path.stem, plan["target"], number(total), *percent, number(over)))
  return lines


def number(x: float) -> str:
  return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def render(folder: Path = HERE) -> None:
  """Writes README.md of a folder; the plans are those beside this file."""
  text = "\n".join((tables.markdown_table(SHARES, shares()), tables.markdown_table(HEADER, rows())))
  tables.replace_part(folder / "README.md", "render.py", text)


if __name__ == "__main__":
  render()
