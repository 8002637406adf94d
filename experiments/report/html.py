"""Writes one static page per run: its numbers, configuration and curves, and sampled completions.

The text of the pages is in templates/*.html, which escape every value; this file gathers the
values.
"""

import base64
import dataclasses
import io
import json
import math
import os
import typing
from typing import Any

import jinja2

from experiments.report import strips
from experiments.report.run_folder import RunFolder, read_run
from experiments.report.summaries import headline, summary_rows
from jaxrl_llm.config import Config, ConfigError, fill, from_dict, to_dict
from jaxrl_llm.fields import options
from jaxrl_llm.late import loaded
from jaxrl_llm.registry import TASKS, Choice
from jaxrl_llm.reporting import glossary
from jaxrl_llm.reporting.reader import RunError, read_json
from jaxrl_llm.reporting.tables import MISSING
from jaxrl_llm.reporting.writers import write_atomically
from jaxrl_llm.store.folders import path_of

CLAMP = 2.0  # nats: larger changes of a token's log-prob have the same colour
OPACITY = 0.7  # of the colour at CLAMP
METHODS = tuple(name for name, section in typing.get_type_hints(Config).items()
                if issubclass(section, Choice) and "name" in options(section))
BLUE, RED, GREY = "31, 111, 235", "218, 54, 51", "128, 128, 128"


@dataclasses.dataclass(frozen=True)
class Completion:
  """One sampled completion as the page shows it.

  Attributes:
    correct: whether the answer is right.
    truncated: whether the length limit ended it.
    tokens: (text, change of the log-prob in nats) of each token; the change is None where a tool
      inserted the token.
  """

  correct: bool
  truncated: bool
  tokens: list[tuple[str, float | None]]


@dataclasses.dataclass(frozen=True)
class Card:
  """One prompt with its completion before and after training; None where it was not sampled."""

  prompt: str
  answer: str
  before: Completion | None
  after: Completion | None


def write_report(workdir: str | os.PathLike, status: str = "running") -> str:
  """Writes workdir/curves.png and workdir/report.html; returns the path of the latter.

  The page needs no other file, no network and no JavaScript. It shows the completions of
  workdir/samples.json if that file exists: {"before": [sample, ...], "after": [sample, ...],
  "iteration": the one after which the latter were made (may be left out)}. A sample has `prompt`,
  `completion`, `answer`, `correct` and `truncated`. For each token of the completion it has the
  text in `pieces` and, in `log_ratio`, the log-prob under the final policy minus the one under the
  policy before training (nats), or None if a tool inserted the token.

  Args:
    workdir: the run's folder.
    status: of the run, in words.

  Raises:
    RunError: the run or its samples cannot be read.
  """
  run = read_run(workdir)
  defaults = flat(_defaults(run.config))
  changes = [(key, _text(value), _text(defaults[key]) if key in defaults else MISSING)
             for key, value in flat(run.config).items()
             if key not in defaults or defaults[key] != value]
  settings = {"All keys": run.config, "Environment": run.environment}
  last_iteration = run.metrics[-1]["iteration"] if run.metrics else MISSING
  names = [_name(run.config, section) for section in ("estimator", "advantage", "task")]
  from experiments.report import plots  # matplotlib, which a run needs only here

  curves = io.BytesIO()
  plots.plot_run(run, curves)
  write_atomically(os.path.join(workdir, "curves.png"), curves.getvalue())
  samples = _samples(run)
  page = render(
      "report.html",
      title=os.path.basename(os.path.abspath(run.workdir)),
      subtitle=" · ".join(filter(None, names)),
      status=f"iteration {last_iteration} of {run.config.get('iterations', MISSING)}: {status}",
      task=_task(run.config),
      headline=headline(run),
      summary=summary_rows(run),
      panels=image_sources(plots.run_panels(run)),
      strips=strips.read(run),
      metrics=_metrics(run),
      changed=changes,
      settings={name: json.dumps(values, indent=2) for name, values in settings.items() if values},
      cards=_cards(run, samples),
      sampled_after=samples.get("iteration") if samples else None,
  )
  path = os.path.join(workdir, "report.html")
  write_atomically(path, page)
  return path


def render(template: str, **values) -> str:
  """Returns the HTML of templates/`template`; a name that it reads and lacks is an error."""
  return _TEMPLATES.get_template(template).render(values)


def image_source(png: bytes) -> str:
  """Returns the `src` of an image that holds the PNG itself."""
  return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def image_sources(pngs: dict[str, bytes]) -> list[tuple[str, str]]:
  """Returns (title, `src`) of each image."""
  return [(title, image_source(png)) for title, png in pngs.items()]


def colour(log_ratio: float) -> str:
  """Returns the CSS background of a token whose log-prob changed by `log_ratio` nats.

  Blue: the final policy makes the token likelier; red: less likely; grey: not a number. The colour
  is translucent, so that it suits a light and a dark page.
  """
  if math.isnan(log_ratio):
    return f"rgba({GREY}, 0.4)"
  strength = min(abs(log_ratio), CLAMP) / CLAMP
  return f"rgba({BLUE if log_ratio > 0 else RED}, {strength * OPACITY:.2f})"


def completion(sample: dict[str, Any]) -> Completion:
  """Returns what the page shows of an entry of samples.json.

  Raises:
    ValueError: the sample has another number of pieces than of log-ratios.
  """
  pieces, changes = sample["pieces"], sample["log_ratio"]
  if len(pieces) != len(changes):
    raise ValueError(f"{len(pieces)} pieces, {len(changes)} log-ratios")
  tokens = [(piece.replace("\n", "↵\n"), None if change is None else float(change))
            for piece, change in zip(pieces, changes, strict=True)]
  return Completion(sample["correct"], sample["truncated"], tokens)


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
  """Returns nested settings as one dict with dotted keys."""
  out = {}
  for key, value in values.items():
    out.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
  return out


def _metrics(run: RunFolder) -> list[tuple[str, str, str, str]]:
  """Returns name, last value, unit and meaning of each metric of the run."""
  last = {name: value for line in run.metrics for name, value in line.items()}
  last.pop("iteration", None)
  rows = []
  for name, value in sorted(last.items()):
    entry = glossary.entry(name)
    rows.append((name, f"{value:.4g}", entry.unit if entry else MISSING,
                 entry.meaning if entry else MISSING))
  return rows


def _samples(run: RunFolder) -> dict[str, Any] | None:
  """Returns what samples.json holds, or None if the run has no such file."""
  path = _samples_path(run)
  return read_json(path) if path_of(path).exists() else None


def _samples_path(run: RunFolder) -> str:
  return os.path.join(run.workdir, "samples.json")


def _cards(run: RunFolder, samples: dict[str, Any] | None) -> list[Card] | None:
  """Returns the cards of the samples, or None without samples."""
  if samples is None:
    return None
  try:
    return [_card(*pair) for pair in _pairs(samples["before"], samples["after"])]
  except (KeyError, TypeError, AttributeError, ValueError) as error:
    raise RunError(f"{_samples_path(run)}: not as `write_report` describes it "
                   f"({type(error).__name__}: {error}).") from error


def _pairs(before: list[dict], after: list[dict]) -> list[tuple[dict | None, dict | None]]:
  """Pairs the samples of equal prompts, in the order of `before`; a single one pairs with None."""
  candidates = list(after)
  pairs = []
  for sample in before:
    partner = next((candidate for candidate in candidates
                    if candidate["prompt"] == sample["prompt"]), None)
    if partner is not None:
      candidates.remove(partner)
    pairs.append((sample, partner))
  return pairs + [(None, sample) for sample in candidates]


def _card(before: dict | None, after: dict | None) -> Card:
  first = before or after
  completions = [None if sample is None else completion(sample) for sample in (before, after)]
  return Card(first["prompt"], str(first["answer"]), *completions)


def _name(config: dict[str, Any], section: str) -> str:
  values = config.get(section)
  return str(values.get("name", "")) if isinstance(values, dict) else ""


def _task(config: dict[str, Any]) -> str:
  """Returns what the run's task asks, by its docstring; empty for a task that is not loaded."""
  name = _name(config, "task")
  text = loaded(TASKS[name].function).__doc__ if name in TASKS else None
  return " ".join((text or "").split("\n\n")[0].split())


def _defaults(config: dict) -> dict:
  """Returns the settings of a run that names the same methods and sets nothing else.

  A method of a plugin that is not loaded has no known defaults.
  """
  names = {section: {"name": config[section]["name"]} for section in METHODS if section in config}
  try:
    return to_dict(fill(from_dict(names)))
  except ConfigError:
    return to_dict(Config())


def _text(value) -> str:
  if value is None:
    return "unset"
  return value if isinstance(value, str) else json.dumps(value)


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("experiments.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters["colour"] = colour
