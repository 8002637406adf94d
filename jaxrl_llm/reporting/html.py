"""One static page per run: numbers, configuration, curves, and what training did to sampled
completions.
"""

import base64
import html
import io
import json
import math
import os
from typing import Any

from jaxrl_llm.config import Config, to_dict
from jaxrl_llm.reporting.plots import plot_run
from jaxrl_llm.reporting.reader import Run, RunError, read_json, read_run
from jaxrl_llm.reporting.tables import MISSING, summary_rows
from jaxrl_llm.reporting.writers import write_atomically

CLAMP = 2.0  # nats of log-ratio at which the colour is full
BLUE, RED = "31, 111, 235", "218, 54, 51"


def write_report(workdir: str | os.PathLike) -> str:
  """Writes workdir/report.html, which needs no other file, no network and no JavaScript, and
  returns its path.

  Reads, besides the run, workdir/samples.json if it is there: {"before": [sample, ...], "after":
  [sample, ...]}, where a sample has `prompt`, `completion`, `answer`, `correct`, `truncated`, and
  per completion token its text in `pieces` and, in `log_ratio`, its log-probability under the final
  policy minus that under the warm-started one; None for a token that the policy did not draw, but a
  tool inserted.

  Raises:
    RunError: the run or its samples cannot be read.
  """
  run = read_run(workdir)
  path = os.path.join(workdir, "report.html")
  write_atomically(path, _page(run))
  return path


def _page(run: Run) -> str:
  name = os.path.basename(os.path.abspath(run.workdir))
  parts = [_setting(run.config, section) for section in ("estimator", "advantage", "task")]
  body = (
      f"<h2>Summary</h2>{table(('', ''), summary_rows(run))}<h2>Curves</h2>{_curves(run)}"
      f"<h2>Configuration</h2>{_config(run)}<h2>Completions before and "
      f"after</h2>{_samples(run.workdir)}"
  )
  return page(name, " · ".join(part for part in parts if part), body)


def page(title: str, subtitle: str, body: str) -> str:
  """A whole page around `body`, which is HTML already; title and subtitle are text."""
  return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><main>
<h1>{html.escape(title)}</h1><p class="quiet">{html.escape(subtitle)}</p>
{body}
</main></body></html>
"""


def _setting(config: dict[str, Any], section: str) -> str:
  values = config.get(section)
  return str(values.get("name", "")) if isinstance(values, dict) else ""


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
  """An HTML table of texts."""
  head = "<tr>" + "".join(
      f"<th>{html.escape(cell)}</th>" for cell in header) + "</tr>" if any(header) else ""
  body = [
      "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
  ]
  return f"<table>{head}{''.join(body)}</table>"


def _curves(run: Run) -> str:
  buffer = io.BytesIO()
  plot_run(run, buffer)
  return image(buffer.getvalue(), "curves of the run over its iterations")


def image(png: bytes, alt: str) -> str:
  """A PNG inside the page."""
  encoded = base64.b64encode(png).decode()
  return f'<img class="curves" alt="{html.escape(alt)}" src="data:image/png;base64,{encoded}">'


def _config(run: Run) -> str:
  """What differs from the defaults, then all of it, folded away."""
  defaults, values = _flat(to_dict(Config())), _flat(run.config)
  changed = [(key, _text(item), _text(defaults[key]) if key in defaults else MISSING)
             for key, item in values.items() if key not in defaults or defaults[key] != item]
  listed = table(("key", "value",
                  "default"), changed) if changed else '<p class="quiet">All keys are defaults.</p>'
  return listed + _folded("All keys", run.config) + _folded("Environment", run.environment)


def _folded(title: str, values: dict[str, Any]) -> str:
  if not values:
    return ""
  return f"<details><summary>{title}</summary><pre>{html.escape(json.dumps(values, indent=2))}</pre></details>"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
  out = {}
  for key, item in values.items():
    out.update(_flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {prefix + key: item})
  return out


def _text(item) -> str:
  return "unset" if item is None else item if isinstance(item, str) else json.dumps(item)


# --- samples


def _samples(workdir: str) -> str:
  path = os.path.join(workdir, "samples.json")
  if not os.path.exists(path):
    return '<p class="quiet">This run has no samples.json, so there are no completions to show.</p>'
  samples = read_json(path)
  try:
    pairs = _pairs(samples["before"], samples["after"])
    cards = [_card(before, after) for before, after in pairs]
  except (KeyError, TypeError, AttributeError, ValueError) as error:
    raise RunError(
        f"{path}: not as `write_report` describes it ({type(error).__name__}: {error}).") from error
  return _legend() + "".join(cards)


def _pairs(before: list[dict], after: list[dict]) -> list[tuple[dict | None, dict | None]]:
  """Samples of the same prompt side by side, in the order of `before`; what has no partner stands
  alone.
  """
  left = list(after)
  pairs = []
  for sample in before:
    partner = next((other for other in left if other["prompt"] == sample["prompt"]), None)
    if partner is not None:
      left.remove(partner)
    pairs.append((sample, partner))
  return pairs + [(None, sample) for sample in left]


def _card(before: dict | None, after: dict | None) -> str:
  known = before or after
  return (
      f'<section class="card"><p class="prompt"><code>{html.escape(known["prompt"])}</code>'
      f'<span class="quiet">answer {html.escape(str(known["answer"]))}</span></p>'
      '<div '
      f'class="pair">{_completion("before", before)}{_completion("after", after)}</div></section>'
  )


def _completion(title: str, sample: dict | None) -> str:
  if sample is None:
    return f'<div><h3>{title}</h3><p class="quiet">no sample for this prompt</p></div>'
  mark = '<b class="right">✓ correct</b>' if sample[
      "correct"] else '<b class="wrong">✗ incorrect</b>'
  cut = '<b class="cut">cut at the length limit</b>' if sample["truncated"] else ""
  if len(sample["pieces"]) != len(sample["log_ratio"]):
    raise ValueError(f'{len(sample["pieces"])} pieces, {len(sample["log_ratio"])} log-ratios')
  tokens = "".join(
      _token(piece, value)
      for piece, value in zip(sample["pieces"], sample["log_ratio"], strict=True))
  return f'<div><h3>{title} {mark} {cut}</h3><p class="tokens">{tokens}</p></div>'


def _token(piece: str, log_ratio) -> str:
  shown = html.escape(piece).replace("\n", "↵\n")
  if log_ratio is None:
    return f'<span class="tool" title="tool">{shown}</span>'
  value = float(log_ratio)
  return f'<span style="background:{_colour(value)}" title="{value:+.3f}">{shown}</span>'


def _colour(log_ratio: float) -> str:
  """Blue where the final policy makes the token likelier, red where less likely; translucent, for
  any background.
  """
  if math.isnan(log_ratio):
    return "rgba(128, 128, 128, 0.4)"
  return f"rgba({BLUE if log_ratio > 0 else RED}, {min(abs(log_ratio), CLAMP) / CLAMP * 0.7:.2f})"


def _legend() -> str:
  steps = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
  swatches = "".join(
      f'<span style="background:{_colour(value)}">{value:+g}</span>' for value in steps)
  return (
      '<p class="legend quiet">Log-probability of each token under the final policy minus under '
      'the warm-started '
      f'one, nats: <span class="tokens">{swatches}</span> red: became less likely, blue: became '
      'likelier, '
      '<span class="tokens"><span class="tool">framed</span></span>: a tool\'s.</p>')


_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #656d76; --page: #ffffff; --card: #f6f8fa; --line: #d8dee4;
  --right: #1a7f37; --wrong: #cf222e; --cut: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --quiet: #9a9a9a; --page: #1a1a1a; --card: #232323;
  --line: #3a3a3a; --right: #4ac26b; --wrong: #ff7b72; --cut: #d4a72c; }
  .curves { filter: invert(0.9) hue-rotate(180deg); } }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { margin: 0; font-size: 26px; overflow-wrap: anywhere; } h2 { margin: 36px 0 12px; font-size: 18px; }
h3 { margin: 0 0 6px; font-size: 13px; font-weight: 600; color: var(--quiet); } h3 b { margin-left: 8px; }
.quiet { color: var(--quiet); margin: 4px 0; } .right { color: var(--right); } .wrong { color: var(--wrong); }
.cut { color: var(--cut); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 4px 24px 4px 0; border-bottom: 1px solid var(--line); text-align: left; }
th, td:first-child { color: var(--quiet); font-weight: 500; }
.curves { width: 100%; height: auto; }
details { margin-top: 12px; } summary { cursor: pointer; color: var(--quiet); }
pre { padding: 12px; background: var(--card); border-radius: 8px; overflow: auto; font-size: 12.5px; }
.card { margin: 14px 0; padding: 12px 16px; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
.prompt { margin: 0 0 10px; white-space: pre-wrap; overflow-wrap: anywhere; } .prompt .quiet { margin-left: 16px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 20px; }
.pair > div { min-width: 0; }
.tokens { margin: 0; font: 14px/1.8 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.tokens span { padding: 2px 1px; border-radius: 3px; } .legend .tokens span { padding: 2px 6px; }
.tokens .tool { border: 1px dashed var(--quiet); }
"""
