"""Tries one TPU or GPU with a run's own programs, in under 8 minutes: kernel against reference,
planned against measured seconds.

  python experiments/bench/device.py --json=device.json    # to paste into an issue
  python experiments/bench/device.py --shapes=0.6B --minutes=4
  python experiments/bench/device.py --tiny    # every part with tiny sizes, as always on a CPU

README.md beside this file says what is measured. A case that does not fit into memory is tried with
half of its rows; one that fails is listed, and the others run.
"""

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path

# The cache of 64 rows of 8,192 columns needs more than the three quarters that JAX takes by itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")

import jax

from experiments.planning import device_benchmark, device_cases, shapes, targets
from jaxrl_llm.config import ModelConfig
from jaxrl_llm.reporting.tables import markdown_table

_1_7B = shapes.SHAPES["Qwen/Qwen3-1.7B"][1]
SHAPES = {
    # huggingface.co/Qwen/Qwen3-0.6B, config.json: 1.7B at half its width.
    "0.6B": ModelConfig(**{**_1_7B, "width": 1024, "mlp_width": 3072}),
    "1.7B": ModelConfig(**_1_7B),
}
TINY = {"tiny": ModelConfig(vocab_size=64, width=32, num_layers=2, num_heads=8, num_kv_heads=8,
                            head_dim=16, mlp_width=64)}
TINY_SIZES = device_benchmark.Sizes(lengths=(16,), step_tokens=32, rows=4, contexts=(16,),
                                    chunk=4, prompt=4, new=8, repeats=2, blocks=(16,),
                                    kernels=((8, 8, 16),), train_dtype="float32")
KINDS = {"gpu": ("windowed",)}  # how decoding reads the cache; elsewhere both
HEADER = ("case", "status", "rows", "median s", "planned s", "first s", "tok/s", "MFU",
          "of bandwidth", "note")
NO_MEASUREMENT = "a CPU: the kernel is interpreted, and no figure here is a measurement"


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--shapes", default=",".join(SHAPES),
                      help="models, separated by commas (default: all)")
  parser.add_argument("--minutes", type=float, default=8.0,
                      help="no case begins that would probably end later (default 8)")
  parser.add_argument("--tiny", action="store_true", help="a tiny model and tiny sizes")
  parser.add_argument("--json", type=Path, help="file of all numbers, written after each case")
  args = parser.parse_args()
  unknown = set(args.shapes.split(",")) - set(SHAPES)
  if unknown:
    parser.error(f"--shapes {sorted(unknown)}: allowed are {', '.join(SHAPES)}")
  return args


def report(result: dict) -> str:
  """Returns the device and a table of all cases as text."""
  peaks = "no published peaks are known for this device, so there is no MFU and no bandwidth bound"
  if result["backend"] == "cpu":
    peaks = NO_MEASUREMENT
  if result["peaks"]:
    peaks = (f"peaks {result['peaks']['flops'] / 1e12:g} TFLOP/s and "
             f"{result['peaks']['bandwidth'] / 1e9:g} GB/s ({result['peaks']['source']})")
  table = markdown_table(HEADER, [_cells(row) for row in result["cases"]])
  return (f"jax {result['jax']} on {result['device']} ({result['backend']}); {peaks}\n\n"
          f"{table}\n\n{result['seconds']:.0f} s in all")


def _cells(row: dict) -> tuple[str, ...]:
  notes = [row["note"]] if row["note"] else []
  if row["did_not_fit"]:
    notes.append(f"too many rows: {', '.join(map(str, row['did_not_fit']))}")
  if "difference" in row:
    way = "interpreted" if row["interpreted"] else "compiled"
    notes.append(f"{way}, differs from the reference by {row['difference']:.1g}")
  if "equal_rows" in row:
    notes.append(f"{row['equal_rows']} rows as recorded, log-probs within "
                 f"{row['log_prob_difference']:.1g}")
  if "attention" in row:
    notes.append(f"attention {row['attention']}")
  for dtype in ("bfloat16", "float32"):
    if dtype in row:
      numbers = row[dtype]
      notes.append(f"{dtype} trainer: |difference| mean {numbers['mean']:.2g}, max "
                   f"{numbers['max']:.2g} nats, k3 {numbers['k3']:.2g}")
  return (row["case"], row["status"], str(row["rows"]), _number(row.get("seconds"), ".4f"),
          _number(row.get("planned_seconds"), ".4f"), _number(row.get("first_seconds"), ".1f"),
          _number(row.get("tokens_per_second"), ",.0f"), _number(row.get("mfu"), ".1%"),
          _number(row.get("bandwidth_share"), ".1%"), "; ".join(notes))


def _number(value: float | None, form: str) -> str:
  return "-" if value is None else format(value, form)


def main() -> None:
  args, begin = arguments(), time.perf_counter()
  models, sizes = {name: SHAPES[name] for name in args.shapes.split(",")}, device_benchmark.Sizes()
  device = jax.devices()[0]
  if args.tiny or device.platform == "cpu":
    models, sizes = TINY, TINY_SIZES
  sizes = dataclasses.replace(sizes, kinds=KINDS.get(device.platform, sizes.kinds))
  chip = targets.chip_of(device.device_kind)
  peaks = chip and {"flops": chip.flops, "bandwidth": chip.bandwidth, "source": chip.source}
  result = {"jax": jax.__version__, "device": device.device_kind, "backend": device.platform,
            "peaks": peaks, "minutes": args.minutes, "cases": []}
  cases = device_benchmark.cases(models, sizes, chip)
  for row in device_cases.run_cases(cases, 60 * args.minutes):
    print(f"{row['case']}: {row['status']}, {row['case_seconds']:.0f} s", flush=True)
    result["cases"].append(row)
    result["seconds"] = time.perf_counter() - begin
    if args.json:
      args.json.write_text(json.dumps(result, indent=1) + "\n")
  print(report(result))
  if any(row["status"] == device_cases.FAILED for row in result["cases"]):
    raise SystemExit(1)


if __name__ == "__main__":
  main()
