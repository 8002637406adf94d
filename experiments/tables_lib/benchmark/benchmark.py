"""Samples several completions per held-out problem and measures them; can be interrupted.

The parameters come from a run's checkpoint or a Hugging Face directory. The folder that is written
holds settings.json, samples.jsonl (a line per finished problem), metrics.json and table.md of the
task's own held-out problems, a folder <name> with the same for each of `evaluation.sets`, and then
joint.md, the table of all. Sample s of problem p is the same for every batch size, number of
samples and interruption.

settings.json holds digests of the parameters and the problems. Samples of others are refused rather
than made again: a path that holds something else by now is the user's to judge, and samples may
have taken hours.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.tables_lib.benchmark import fingerprints
from experiments.tables_lib.benchmark.benchmark_metrics import bare, joint_table, summarize, table
from experiments.tables_lib.benchmark.loading import (
  load_directory as load_directory,
)
from experiments.tables_lib.benchmark.loading import (
  load_run as load_run,
)
from jaxrl_llm.config import (
  ConfigError,
  to_dict,
)
from jaxrl_llm.grading.grading import answer_key
from jaxrl_llm.reporting.writers import write_atomically
from jaxrl_llm.rollouts.next_token import Draw
from jaxrl_llm.runs.evaluate import sample_rows
from jaxrl_llm.runs.rollout_batch import prompt_batch
from jaxrl_llm.runs.verdicts import Verdicts, verify
from jaxrl_llm.store import workdir
from jaxrl_llm.types import Params, Problem, Rollout, Sampling
from jaxrl_llm.wiring.evaluation_sets import EvaluationSet
from jaxrl_llm.wiring.sampler import Sampler

MOST_SAMPLES = 4096  # row id = problem * MOST_SAMPLES + sample
# Events that end a row, besides its length.
ENDS = ("min_new_tokens", "stop_strings", "max_turns", "max_turn_tokens", "max_tool_tokens")
FIXES = "Fix: another --out, or the flags that it was begun with."


@dataclasses.dataclass(frozen=True)
class Settings:
  """Sampling settings.

  Attributes:
    samples: per problem, at most 4096.
    temperature, top_p, top_k, min_p: see `types.Sampling`. Temperature 0 is greedy; one sample says
      it all then.
    batch: rows sampled together; changes speed and memory only.
    seed: seed of the samples.
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
        raise ConfigError(f"--{name}={getattr(self, name)}: allowed are {low} to {high}. "
                          "Fix: a value among them.")


def run(sets: list[EvaluationSet], sampler: Sampler, params: Params, settings: Settings,
        out: str | Path, description: dict[str, Any]) -> dict[str, dict]:
  """Samples what is missing in `out`, and writes metrics and tables there.

  Args:
    sets: of `evaluation_sets.make_sets`; each has a folder, the task's own problems `out` itself.
    params: as the model reads them.
    settings: a set's own number of samples and temperature take precedence; 0 samples mean one, at
      temperature 0.
    description: JSON-able, compared on resuming: of `build.loading.described`, and as "source" what
      the parameters are.

  Returns:
    By the set's name, its metrics: name -> {"value", "low", "high"}, the bounds None where no
    interval is given.

  Raises:
    ConfigError: a folder holds samples of other settings, parameters or problems, or a damaged
      line.
  """
  source = {**description["source"], "parameters": fingerprints.params_digest(params)}
  out, description = Path(out), description | {"source": source}
  plans = [_plan(evaluation_set, settings) for evaluation_set in sets]
  for evaluation_set, plan in zip(sets, plans, strict=True):
    _claim(out / evaluation_set.name, _described(evaluation_set, plan, description))
  metrics_of_set = {}
  for evaluation_set, plan in zip(sets, plans, strict=True):
    path = out / evaluation_set.name / "samples.jsonl"
    _sample_missing(evaluation_set, sampler, params, plan, path)
    lines = read_samples(path)
    metrics = summarize([lines[index] for index in sorted(lines)], plan.seed)
    if evaluation_set.too_long:
      metrics["problems left out, too long"] = bare(evaluation_set.too_long)
    write_atomically(path.with_name("metrics.json"), json.dumps(metrics, indent=2) + "\n")
    write_atomically(path.with_name("table.md"), table(metrics))
    metrics_of_set[evaluation_set.name] = metrics
  if any(metrics_of_set):
    write_atomically(out / "joint.md", joint_table(metrics_of_set))
  return metrics_of_set


def _plan(evaluation_set: EvaluationSet, settings: Settings) -> Settings:
  """Returns the settings of a set."""
  if evaluation_set.samples is None:
    return settings
  if not evaluation_set.samples:
    return dataclasses.replace(settings, samples=1, temperature=0.0)
  heat = settings.temperature if evaluation_set.temperature is None else evaluation_set.temperature
  return dataclasses.replace(settings, samples=evaluation_set.samples, temperature=heat)


def _described(evaluation_set: EvaluationSet, plan: Settings, description: dict) -> dict:
  """Returns all that the samples of a set depend on, for settings.json."""
  r = evaluation_set.rollout
  return {
      **description,
      "plan": _without(dataclasses.asdict(plan), "batch"),
      "task": _without(to_dict(evaluation_set.cfg), "verifier_workers", "shuffle_rewards"),
      "problems": fingerprints.problems_digest(evaluation_set.task, evaluation_set.problems),
      "max_prompt_tokens": r.max_prompt_tokens,
      "max_new_tokens": r.max_new_tokens,
      "ends": {name: getattr(r, name) for name in ENDS},
  }


def _without(values: dict, *names: str) -> dict:
  return {key: value for key, value in values.items() if key not in names}


def _claim(out: Path, settings: dict) -> None:
  """Writes settings.json into a new folder; refuses one with other settings."""
  path, settings = out / "settings.json", json.loads(json.dumps(settings))
  if path.exists():
    try:
      existing = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
      raise ConfigError(f"{path}: {error}. Fix: another --out.") from error
    if not isinstance(existing, dict):
      raise ConfigError(f"{path}: an object was expected, not {str(existing)[:60]!r}. Fix: another "
                        "--out.")
    if not isinstance(existing.get("source"), dict) or "parameters" not in existing["source"]:
      raise ConfigError(
          f"{path} holds no digest of the parameters: an older version wrote it, so that nothing "
          f"tells whether its samples are of these. Fix: another --out, or remove {out}.")
    if differing := workdir.differences(existing, settings):
      stale = {"source.parameters": "the parameters have changed under the same name",
               "problems": "the problems have changed under the same name"}
      why = [f" ({text})" for key, text in stale.items()
             if len(differing) == 1 and differing[0].startswith(f"{key}:")]
      raise ConfigError(f"--out={out} holds samples of other settings{''.join(why)}:\n  "
                        + "\n  ".join(differing).replace("in the workdir", "there") + f"\n{FIXES}")
    return
  out.mkdir(parents=True, exist_ok=True)
  write_atomically(path, json.dumps(settings, indent=2) + "\n")


def read_samples(path: Path) -> dict[int, dict]:
  """Returns the lines of samples.jsonl by problem. A last line torn by an interruption is dropped.

  Raises:
    ConfigError: another line is damaged.
  """
  if not path.exists():
    return {}
  lines = {}
  for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
    try:
      line = json.loads(text)
      lines[line["index"]] = line
    except (ValueError, RecursionError, KeyError, TypeError) as error:
      raise ConfigError(
          f"{path}, line {number}: {error!r}. Fix: remove the line; its problem is sampled "
          "again.") from error
  return lines


def _check_lines(path: Path, lines: dict[int, dict], problems: list[Problem],
                 samples: int) -> None:
  """Refuses kept lines that are not of today's problems.

  Raises:
    ConfigError: naming the problem and what differs.
  """
  for index, line in lines.items():
    problem = problems[index] if 0 <= index < len(problems) else Problem("", "")
    expected = {"id": problem.id, "prompt": problem.prompt, "answer": problem.answer,
                "samples": samples}
    stored = {**line, "samples": len(line.get("samples", ()))}
    for name, value in expected.items():
      if stored.get(name) != value:
        raise ConfigError(
            f"{path}: {name} of problem {index} is {stored.get(name)!r} there and {value!r} now. "
            "Fix: remove the line, and its problem is sampled again; or another --out.")


def _sample_missing(evaluation_set: EvaluationSet, sampler: Sampler, params: Params,
                    settings: Settings, path: Path) -> None:
  """Appends a line for each problem that has none, as soon as its samples are complete."""
  task, problems, prior_samples = evaluation_set.task, evaluation_set.problems, read_samples(path)
  _check_lines(path, prior_samples, problems, settings.samples)
  rows = [(p, s) for p in range(len(problems)) if p not in prior_samples
          for s in range(settings.samples)]
  key = evaluation_set.key(jax.random.key(settings.seed))
  sampling = Sampling.of(settings.temperature, top_k=settings.top_k, top_p=settings.top_p,
                         min_p=settings.min_p)
  kind = getattr(task, "verifier", None)  # says how answers look
  as_graded = getattr(task, "as_graded", lambda _, text: text)
  group_size = settings.samples if settings.batch % settings.samples == 0 else 1
  gathered: dict[int, list[dict]] = {}
  with open(path, "ab") as file:
    file.truncate(path.read_bytes().rfind(b"\n") + 1)
    for begin in range(0, len(rows), settings.batch):
      batch = rows[begin:begin + settings.batch]
      repeated = [problems[p] for p, _ in batch]
      row_id = np.array([p * MOST_SAMPLES + s for p, s in batch], np.int32)
      prompts = prompt_batch(task, repeated, evaluation_set.rollout.max_prompt_tokens)
      prompts = prompts.replace(row_id=row_id)
      host = sample_rows(sampler, params, prompts, Draw(key, sampling), piece=settings.batch,
                         problems=repeated, group_size=group_size)
      verdicts = verify(task, sampler.environment, evaluation_set.rollout, repeated, host)
      for row, (p, _) in enumerate(batch):
        sample = _sample(verdicts, host, row)
        # Without the tag of a thought that the prompt opened, its text would look like an answer.
        sample["answer"] = answer_key(as_graded(problems[p], verdicts.texts[row]), kind)
        gathered.setdefault(p, []).append(sample)
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


def _sample(verdicts: Verdicts, host: Rollout, row: int) -> dict:
  """Returns a JSON-able record of one sample."""
  reward, reason = verdicts.given[row], verdicts.given[row].unscored_reason
  if reason is None and not verdicts.keep[row]:
    reason = "void"  # the tool failed, or the row ended without an answer
  return {
      "completion": verdicts.texts[row],
      "correct": bool(verdicts.correct[row]),
      "reward": float(verdicts.rewards[row]),
      "length": int(host.length[row] - host.prompt_length[row]),
      "truncated": bool(host.truncated[row]),
      "unscored_reason": reason,
      "rung": reward.rung,
  }
