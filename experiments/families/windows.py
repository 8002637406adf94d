"""Writes what a decode step reads of a cache of 8,192 tokens, with and without a sliding window.

  python experiments/families/windows.py
  python experiments/families/windows.py --targets=v5e:1 --page=

One layer of Gemma 3 1B's attention (one key-value head of 256, bf16), 64 rows, the engine's chunk
of 128 steps, compiled for a chip that is not there. It needs libtpu: pip install -e '.[plan-tpu]'.
"""

import argparse
import dataclasses
from pathlib import Path

from experiments.planning import abstract, analysis, programs, targets
from experiments.tables_lib import page_parts
from jaxrl_llm.config import Config, base_config, from_dict
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.wiring.resolve import resolve

PAGE = Path(__file__).parent / "README.md"
PART = "windows.py"
PROMPT, NEW, ROWS, CHUNK = 1024, 7168, 64, 128
WINDOW = 512
KINDS = ("kernel", "windowed")
COLUMN = ROWS * 2 * 256 * 2  # bytes of a token's keys and values in all rows, bf16
HEADER = ("target", "`rollout.decode_attention`", "`model.window`", "MB that tokens attend to",
          "MB a step", "with a chunk's copies", "over what tokens attend to")


def config(attention: str, window: int) -> Config:
  """Returns a run of one layer, whose weights are small beside the cache."""
  cfg = base_config()
  cfg.model.update(vocab_size=256, width=128, num_layers=1, num_heads=4, num_kv_heads=1,
                   head_dim=256, mlp_width=128, window=window, compute_dtype="bfloat16")
  cfg.rollout.update(prompts=ROWS // 4, group_size=4, max_prompt_tokens=PROMPT, max_new_tokens=NEW,
                     slots=ROWS, chunk=CHUNK, window=1024, decode_attention=attention)
  cfg.updates.optimizer_batches = 1
  return from_dict(cfg)


def step_bytes(target: str, attention: str, window: int) -> tuple[float, float]:
  """Returns the bytes that a step of full rows moves, buffers on the chip included: in the loop of
  a chunk, and with an equal share of what the chunk copies before and after.

  Args:
    target: as the planner's.
    attention: rollout.decode_attention, kernel or windowed.
    window: model.window.
  """
  described = targets.describe(target)
  cfg = resolve(config(attention, window), described.chip.platform)
  planned = abstract.plan(cfg, described.devices)
  (program,) = programs.iteration_programs(planned, ("decode",))
  work = analysis.analyse(dataclasses.replace(program, live=1.0), described)
  inside, total = work.per_trip[-1].traffic, work.run.traffic
  return inside.memory + inside.on_chip, (total.memory + total.on_chip) / CHUNK


def row(target: str, attention: str, window: int) -> tuple[str, ...]:
  """Returns a row of the table."""
  needs = (window or PROMPT + NEW) * COLUMN
  inside, total = step_bytes(target, attention, window)
  numbers = (f"{x / 1e6:.3g}" for x in (needs, inside, total))
  return (target, attention, str(window or "none"), *numbers, f"{total / needs:.2f}")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--targets", default="v5e:1,v6e:1", help="of the planner, by comma")
  parser.add_argument("--page", default=str(PAGE), help="page to write; empty: none")
  flags = parser.parse_args()
  rows = [row(target, kind, window) for target in flags.targets.split(",") for kind in KINDS
          for window in (0, WINDOW)]
  text = markdown_table(HEADER, rows)
  print(text)
  if flags.page:
    page_parts.replace_part(flags.page, PART, text)


if __name__ == "__main__":
  main()
