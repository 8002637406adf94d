"""The gap between a sampler's numerics and the trainer's for one trained policy, and what pruning
does to it.

  python experiments/mismatch/run.py runs/quickstart
  python experiments/mismatch/run.py runs/quickstart --temperature=2

Nothing is trained. The run's newest policy samples batches of the run's task in each numerics,
unpruned and with dynamic vocabulary pruning on both sides, and the trainer's numerics score the
completions. Keys and problems are the same in every line. Prints the tables and writes
mismatch.json into the run's folder; with --record also results.json and the tables of README.md
beside this file.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import sys
from pathlib import Path

import jax
import numpy as np

from experiments.commands import cache, saved
from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm import parallel
from jaxrl_llm.config import Config, ConfigError, StepConfig
from jaxrl_llm.objective.mismatch import PROBABILITY_EDGES, mismatch_metrics
from jaxrl_llm.ops import masked
from jaxrl_llm.reporting.summary import summarize
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.runs.rollout_batch import iteration_key, next_prompts
from jaxrl_llm.store.checkpoints import TornCheckpointsError
from jaxrl_llm.training.meter import valid_tokens
from jaxrl_llm.training.score import score
from jaxrl_llm.types import Rollout, Sampling, merge_metrics
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.loop import RolloutSource, make_source

HERE = Path(__file__).parent
NUMERICS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16 cache": {"cache_dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "int8, bfloat16": {"quantization": "int8", "dtype": "bfloat16"},
}
# min_p of arXiv 2512.23087 (unconfirmed), and 5 % of the largest probability
PUBLISHED, BITING = float(np.exp(-13)), float(np.exp(-3))
MIN_P = {"0": 0.0, "e^-13": PUBLISHED, "e^-3": BITING}
COLUMNS = {
    "mean abs d": "mismatch/absolute",
    "k1": "mismatch/k1",
    "k3": "mismatch/k3",
    "outside [0.9, 1.1]": "mismatch/outside",
    "abs sum d per completion": "mismatch/row",
    "pruned by scorer": "pruned"
}
PART = "run.py, temperature {}"  # of README.md


def with_numerics(cfg: Config, options: dict) -> Config:
  """The run's config with one of NUMERICS in place of its own."""
  default = {"dtype": "float32", "cache_dtype": "default", "quantization": "none"}
  return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, compute_dtype="float32"),
                             rollout=dataclasses.replace(cfg.rollout, **default | options))


def meter(params, rollout, sampling, *, scorer) -> dict:
  """The meter's metrics, and the share of sampled tokens that the scorer's vocabulary lacks."""
  stats = scorer(params, rollout, sampling)
  live = valid_tokens(stats, rollout)
  return mismatch_metrics(stats.log_probs, rollout.behavior_log_probs, live) | {
      "pruned": masked.mean(1.0 - live, rollout.mask)}


def measure(workdir: Path, checkpoint: str, keys: int, temperature: float | None,
            plugins: str = "") -> dict:
  """Settings and, per numerics and min_p, COLUMNS of each key and all metrics of the rows together.
  """
  cfg, _, learner = saved.build_learner(workdir, plugins=plugins)
  devices = list(learner.mesh.devices.flat)
  configs = {name: setup.resolve(with_numerics(cfg, options)) for name, options in NUMERICS.items()}
  base, task, learner = setup.build_learner(configs["float32"], devices)
  iteration, params = saved.restore_trained(base, learner, workdir, checkpoint)
  temperature = cfg.rollout.temperature if temperature is None else temperature
  scorer = functools.partial(
      score, model=learner.model,
      cfg=StepConfig(dataclasses.replace(base.loss, stop_ids=task.stop_ids)),
      stats=frozenset({"in_support"}), rules=frozenset({"min_p"}))
  metered = jax.jit(functools.partial(meter, scorer=scorer))
  lines = []
  for name, changed in configs.items():
    cfg, task, _, sampler = setup.build(changed, devices)
    source = make_source(cfg, task, sampler)
    with contextlib.closing(sampler):
      prepared = sampler.prepare(params)
      for rule, min_p in MIN_P.items():
        sampling, metrics_by_key = Sampling.of(temperature, min_p=min_p), []
        for key in range(keys):
          rollout = sample(source, prepared, sampling, key)
          metrics_by_key.append(jax.device_get(metered(params, rollout, sampling)))
        lines.append({"numerics": name, "min_p": rule, **pooled(metrics_by_key)})
  return {
      "iteration": iteration,
      "temperature": temperature,
      "keys": keys,
      "rows_per_key": cfg.rollout.rows,
      "lines": lines,
  }


def sample(source: RolloutSource, params, sampling: Sampling, key: int) -> Rollout:
  """The rows of the task's batch and the sampling key that `key` numbers."""
  _, prompts = next_prompts(source, key)
  prompts = parallel.to_global(prompts, source.sampler.mesh)
  rollout, _ = source.sampler.sample(params, prompts, iteration_key(source.seed, key), sampling)
  return rollout


def pooled(metrics_by_key: list[dict]) -> dict:
  """Metrics of each key, and of the rows of all keys together."""
  merged = jax.device_get(merge_metrics(metrics_by_key))
  summaries = [summarize(metrics) for metrics in metrics_by_key]
  return {
      "keys": [{column: summary[column] for column in COLUMNS.values()} for summary in summaries],
      "all": summarize(merged),
      "tokens": float(merged["mismatch/absolute"].count),
      "tokens_by_probability": merged["mismatch/absolute/by_probability"].count.tolist(),
  }


def interval(values: list[float]) -> str:
  """Mean and standard deviation over the keys."""
  return f"{np.mean(values):.2g} ± {np.std(values, ddof=1):.1g}"


def tables(result: dict) -> str:
  """Markdown: the meter, and where the gap lies."""
  lines, edges = result["lines"], (0, *PROBABILITY_EDGES, 1)
  spans = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges)]
  meter_rows, where_rows, count_rows = [], [], []
  for line in lines:
    spreads = [interval([key[name] for key in line["keys"]]) for name in COLUMNS.values()]
    meter_rows.append((line["numerics"], line["min_p"], *spreads))
    cells = [bucket_cell(line["all"], index) for index in range(len(spans))]
    where_rows.append((line["numerics"], line["min_p"], *cells))
  for line in lines[:len(MIN_P)]:
    count_rows.append((line["min_p"], *(f"{n:.0f}" for n in line["tokens_by_probability"])))
  meter_table = markdown_table(("numerics", "min_p", *COLUMNS), meter_rows)
  where_table = markdown_table(("numerics", "min_p", *spans), where_rows)
  count_table = markdown_table(("min_p", *spans), count_rows)
  head = (f"Iteration {result['iteration']}, temperature {result['temperature']:g}, "
          f"{result['keys']} keys of {result['rows_per_key']} completions; mean ± standard "
          "deviation over keys, nats. d = scored - sampled.")
  return (f"{head}\n\n{meter_table}\n"
          "Mean |d| / mean d by the sampler's probability of the token, all keys:\n\n"
          f"{where_table}\n"
          f"Tokens in these buckets, float32:\n\n{count_table}")


def bucket_cell(metrics: dict, index: int) -> str:
  """Mean |d| / mean d of a bucket of probabilities; "-" if it is empty."""
  k1 = metrics.get(f"mismatch/k1/by_probability/bucket_{index}")
  if k1 is None:
    return "-"
  return f"{metrics[f'mismatch/absolute/by_probability/bucket_{index}']:.2g} / {-k1:+.1g}"


def record(result: dict, text: str) -> None:
  """results.json and the README's block of this temperature."""
  path, readme = HERE / "results.json", HERE / "README.md"
  kept = json.loads(path.read_text()) if path.exists() else {}
  temperature = f"{result['temperature']:g}"
  path.write_text(json.dumps(kept | {temperature: result}, indent=1) + "\n")
  replace_part(readme, PART.format(temperature), text)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("workdir", type=Path, help="folder of a run")
  parser.add_argument("--checkpoint", default="latest", help="iteration of the run's checkpoint")
  parser.add_argument("--keys", type=int, default=5,
                      help="batches, each with a sampling key of its own; at least 2")
  parser.add_argument("--temperature", type=float, help="of sampler and scorer; default: the run's")
  parser.add_argument("--plugins", default="",
                      help="`run`: import the plugins that the run's config names")
  parser.add_argument("--record", action="store_true",
                      help="write results.json and the README's tables")
  arguments = parser.parse_args()
  cache.keep_programs()
  try:
    if arguments.keys < 2:
      raise ConfigError(f"--keys={arguments.keys}: one key has no spread. Fix: --keys=2 or more.")
    result = measure(arguments.workdir, arguments.checkpoint, arguments.keys, arguments.temperature,
                     arguments.plugins)
    text = tables(result)
    print(text)
    (arguments.workdir / "mismatch.json").write_text(json.dumps(result, indent=1) + "\n")
    if arguments.record:
      record(result, text)
  except (ConfigError, TornCheckpointsError, OSError) as error:
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  main()
