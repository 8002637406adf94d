"""Samples several completions per held-out problem and measures them; can be interrupted.

The parameters come from a run's checkpoint or a Hugging Face directory. The folder that is written
holds settings.json, samples.jsonl (a line per finished problem), metrics.json and table.md. Sample
s of problem p is the same for every batch size, number of samples and interruption.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_llm.config import (
  Config,
  ConfigError,
  ParametersConfig,
  WarmStartConfig,
  to_dict,
  without_unread,
)
from jaxrl_llm.models import hf
from jaxrl_llm.reporting.metrics_at_k import bootstrap_interval, maj_at_k, pass_at_k
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.reporting.writers import write_atomically
from jaxrl_llm.runs import saved, setup, workdir
from jaxrl_llm.runs.evaluate import sample_rows
from jaxrl_llm.runs.prompt_batch import prompt_batch
from jaxrl_llm.runs.samplers import Sampler
from jaxrl_llm.runs.setup import Built
from jaxrl_llm.runs.verdicts import Verdicts, verify
from jaxrl_llm.tasks.grading import answer_key
from jaxrl_llm.types import Params, Rollout, Sampling, Task

MOST_SAMPLES = 4096  # row id = problem * MOST_SAMPLES + sample
FIXES = "Fix: another --out, or the flags that it was begun with."


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is sampled.

  Attributes:
    samples: per problem, at most 4096.
    temperature, top_p, top_k, min_p: see `types.Sampling`. Temperature 0 is greedy; one sample says
      it all then.
    batch: rows sampled at once; changes speed and memory only.
    seed: of the samples.
  """

  samples: int = 8
  temperature: float = 0.6
  top_p: float = 1.0
  top_k: int = 0
  min_p: float = 0.0
  batch: int = 64
  seed: int = 0

  def __post_init__(self):
    for name, low, high in (("samples", 1, MOST_SAMPLES), ("temperature", 0, 100),
                            ("top_p", 1e-6, 1), ("min_p", 0, 1), ("top_k", 0, 2**31 - 1),
                            ("batch", 1, 2**20), ("seed", 0, 2**31 - 1)):
      if not low <= getattr(self, name) <= high:
        raise ConfigError(f"--{name}={getattr(self, name)}: allowed are {low} to {high}.")


def load_run(folder: str | Path, checkpoint: str | int = "latest", override: Config | None = None,
             devices=None, plugins: str = "") -> tuple[Built, Params]:
  """(built, parameters) of a run's checkpoint. The caller closes the sampler.

  Args:
    override: its task, mesh, and lengths of prompts and completions replace the run's; None: all as
      in the run.
    devices: as `setup.build`.
    plugins: as `saved.read_config`.

  Raises:
    ConfigError: no run, other plugins, no such checkpoint, or a task that does not fit the model.
    TornCheckpointsError: the checkpoint cannot be read.
  """
  cfg, kept = saved.read_config(folder, devices, plugins)
  if override is None:
    built = setup.build(cfg, kept)
  else:
    theirs = override.rollout
    rollout = dataclasses.replace(cfg.rollout, max_prompt_tokens=theirs.max_prompt_tokens,
                                  max_new_tokens=theirs.max_new_tokens, window=theirs.window)
    changed = dataclasses.replace(cfg, task=override.task, mesh=override.mesh, rollout=rollout)
    built = _build(changed, devices)
  return built, saved.restore_trained(built.cfg, built.learner, folder, checkpoint)[1]


def load_directory(path: str | Path, cfg: Config, devices=None) -> tuple[Built, Params]:
  """(built, parameters) of a Hugging Face directory, in its own dtype, for the task of `cfg`. The
  caller closes the sampler.

  Raises:
    ConfigError: the task does not fit the model.
    CheckpointError: the directory cannot be read.
  """
  changed = dataclasses.replace(cfg, pretrained=str(path), parameters=ParametersConfig())
  built = _build(without_unread(changed), devices)  # the directory sets the model's shapes
  return built, hf.load_pretrained(path, mesh=built.learner.mesh)[1]


def _build(cfg: Config, devices=None) -> Built:
  """`setup.build` without a warm start, whose demonstrations the task may lack."""
  return setup.build(setup.resolve(dataclasses.replace(cfg, warm_start=WarmStartConfig())), devices)


def run(cfg: Config, task: Task, sampler: Sampler, params: Params, settings: Settings,
        out: str | Path, source: dict[str, Any]) -> dict[str, Any]:
  """Samples what is missing in `out`, and writes metrics.json and table.md there.

  Args:
    params: as the model reads them.
    source: JSON-able; what the parameters are, compared on resuming.

  Returns:
    The metrics: name -> {"value", "low", "high"}, the bounds None where no interval is given.

  Raises:
    ConfigError: `out` holds samples of other settings, or a damaged line.
  """
  out = Path(out)
  _claim(out, {
      "source": source,
      "plan": _without(dataclasses.asdict(settings), "batch"),
      "task": _without(to_dict(cfg.task), "verifier_workers", "shuffle_rewards"),
      "max_prompt_tokens": cfg.rollout.max_prompt_tokens,
      "max_new_tokens": cfg.rollout.max_new_tokens,
  })
  path = out / "samples.jsonl"
  _sample_missing(cfg, task, sampler, params, settings, path)
  lines = read_samples(path)
  metrics = summarize([lines[index] for index in sorted(lines)], settings.seed)
  write_atomically(out / "metrics.json", json.dumps(metrics, indent=2) + "\n")
  write_atomically(out / "table.md", table(metrics))
  return metrics


def _without(values: dict, *names: str) -> dict:
  return {key: value for key, value in values.items() if key not in names}


def _claim(out: Path, settings: dict) -> None:
  """Writes settings.json into a new folder; refuses one with other settings."""
  path, settings = out / "settings.json", json.loads(json.dumps(settings))
  if path.exists():
    try:
      theirs = json.loads(path.read_text())
    except ValueError as error:
      raise ConfigError(f"{path}: {error}. Fix: another --out.") from error
    if found := workdir.differences(theirs, settings):
      raise ConfigError(f"--out={out} holds samples of other settings:\n  "
                        + "\n  ".join(found).replace("in the workdir", "there") + f"\n{FIXES}")
    return
  out.mkdir(parents=True, exist_ok=True)
  write_atomically(path, json.dumps(settings, indent=2) + "\n")


def read_samples(path: Path) -> dict[int, dict]:
  """The lines of samples.jsonl by problem. A last line torn by an interruption is dropped.

  Raises:
    ConfigError: another line is damaged.
  """
  if not path.exists():
    return {}
  found = {}
  for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
    try:
      line = json.loads(text)
      found[line["index"]] = line
    except (ValueError, KeyError, TypeError) as error:
      raise ConfigError(
          f"{path}, line {number}: {error!r}. Fix: remove the line; its problem is sampled "
          "again.") from error
  return found


def _sample_missing(cfg: Config, task: Task, sampler: Sampler, params: Params, settings: Settings,
                    path: Path) -> None:
  """Appends a line for each problem that has none, as soon as its samples are complete."""
  problems, done = task.heldout(cfg.task.heldout_problems), read_samples(path)
  rows = [(p, s) for p in range(len(problems)) if p not in done for s in range(settings.samples)]
  key = jax.random.key(settings.seed)
  sampling = Sampling.of(settings.temperature, top_k=settings.top_k, top_p=settings.top_p,
                         min_p=settings.min_p)
  kind = getattr(task, "verifier", None)
  gathered: dict[int, list[dict]] = {}
  with open(path, "ab") as file:
    file.truncate(path.read_bytes().rfind(b"\n") + 1)
    for begin in range(0, len(rows), settings.batch):
      batch = rows[begin:begin + settings.batch]
      asked = [problems[p] for p, _ in batch]
      row_id = np.array([p * MOST_SAMPLES + s for p, s in batch], np.int32)
      prompts = prompt_batch(task, asked, cfg.rollout.max_prompt_tokens).replace(row_id=row_id)
      host = sample_rows(sampler, params, prompts, key, sampling, piece=settings.batch,
                         problems=asked)
      verdicts = verify(task, sampler.environment, cfg.rollout, asked, host)
      for row, (p, _) in enumerate(batch):
        gathered.setdefault(p, []).append(_sample(verdicts, host, row, kind))
        if len(gathered[p]) == settings.samples:
          line = {
              "index": p,
              "id": problems[p].id,
              "prompt": problems[p].prompt,
              "answer": problems[p].answer,
              "samples": gathered.pop(p),
          }
          file.write((json.dumps(line, ensure_ascii=False) + "\n").encode(errors="replace"))
      file.flush()
      os.fsync(file.fileno())


def _sample(verdicts: Verdicts, host: Rollout, row: int, kind: str | None) -> dict:
  """JSON-able record of one sample; `kind` is the task's verifier, which says how answers look."""
  text = verdicts.texts[row]
  return {
      "completion": text,
      "correct": bool(verdicts.correct[row]),
      "reward": float(verdicts.rewards[row]),
      "length": int(host.length[row] - host.prompt_length[row]),
      "truncated": bool(host.truncated[row]),
      "unscored_reason": verdicts.given[row].unscored_reason,
      "answer": answer_key(text, kind),
  }


def summarize(lines: list[dict], seed: int = 0) -> dict[str, dict]:
  """Metrics of a benchmark: {"value", "low", "high"}, with 95 % intervals of a bootstrap over
  problems.

  - avg@n: share of correct ones among scored samples, n per problem.
  - pass@k: unbiased, for powers of two up to n. A problem with fewer than k scored samples is left
    out.
  - maj@k: of the first k samples. Right answers are one group, wrong ones are grouped by their
    text, and unscored samples do not vote.

  A problem without any scored sample is left out of all three. Lengths are in tokens, the stop
  token included; distinct answers are per problem.
  """
  samples = [line["samples"] for line in lines]
  n = max(map(len, samples))
  scored = [[s for s in row if s["unscored_reason"] is None] for row in samples]
  correct = np.full((len(lines), n), np.nan)
  for row, of_problem in enumerate(scored):
    correct[row, :len(of_problem)] = [s["correct"] for s in of_problem]
  found = {f"avg@{n}": _Values(np.nanmean(correct[~np.isnan(correct[:, 0])], 1), correct)}
  powers = [2**i for i in range(n.bit_length())]
  for k in powers:
    values = np.array([_pass(of_problem, k) for of_problem in scored])
    found[f"pass@{k}"] = _Values(values, values)
  for k in powers[1:]:
    values = np.array([_vote(row[:k]) for row in samples])
    found[f"maj@{k}"] = _Values(values, values)
  out = {}
  for name, (values, resampled) in found.items():
    low, high = bootstrap_interval(resampled, seed=seed)
    out[name] = {"value": _mean(values), "low": low, "high": high}
  for name, value in _plain(samples).items():
    out[name] = {"value": value, "low": None, "high": None}
  return {name: {key: None if x is None or np.isnan(x) else x for key, x in entry.items()}
          for name, entry in out.items()}


class _Values(NamedTuple):
  """Values whose mean is a metric, and the array that its bootstrap resamples by problem."""

  values: np.ndarray
  resampled: np.ndarray


def _plain(samples: list[list[dict]]) -> dict[str, float]:
  """Means and counts without an interval; `samples` are those of each problem."""
  flat = [sample for row in samples for sample in row]
  lengths = np.array([s["length"] for s in flat], float)
  right = np.array([s["correct"] for s in flat])
  answers = [{s["answer"] for s in row} - {None} for row in samples]
  reasons = [s["unscored_reason"] for s in flat if s["unscored_reason"] is not None]
  plain = {
      "mean length": _mean(lengths),
      "mean length of correct samples": _mean(lengths[right]),
      "truncated share": _mean(np.array([s["truncated"] for s in flat], float)),
      "samples without an answer": _mean(np.array([s["answer"] is None for s in flat], float)),
      "distinct answers": _mean(np.array([len(distinct) for distinct in answers], float)),
      "unscored samples": len(reasons),
      "problems": len(samples),
  }
  return plain | {f"unscored: {why}": reasons.count(why) for why in sorted(set(reasons))}


def _pass(scored: list[dict], k: int) -> float:
  """pass@k of a problem; NaN with fewer than k scored samples."""
  if len(scored) < k:
    return float("nan")
  return pass_at_k(len(scored), sum(s["correct"] for s in scored), k)


def _vote(samples: list[dict]) -> float:
  """maj@k of a problem's first k samples; NaN if none is scored."""
  scored = [s for s in samples if s["unscored_reason"] is None]
  keys = [("right",) if s["correct"] else s["answer"] for s in scored]
  return maj_at_k(keys, [s["correct"] for s in scored]) if scored else float("nan")


def _mean(values: np.ndarray) -> float:
  """The mean of the values that are not NaN; NaN if there is none."""
  values = values[~np.isnan(values)]
  return float(np.mean(values)) if len(values) else float("nan")


def table(metrics: dict[str, dict]) -> str:
  """Markdown; "-" where there is no value or interval."""
  rows = []
  for name, entry in metrics.items():
    interval = "-"
    if entry["low"] is not None:
      interval = f"{_number(entry['low'])} to {_number(entry['high'])}"
    rows.append((name, _number(entry["value"]), interval))
  return markdown_table(("", "value", "95 % interval"), rows)


def _number(value: float | None) -> str:
  return "-" if value is None else f"{value:.4g}"
