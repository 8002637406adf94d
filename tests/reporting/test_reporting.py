"""Metrics through merging, writing, crashes and reading; the HTML report."""

import html.parser
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.report.html import write_report
from experiments.report.run_folder import read_run
from experiments.tables_lib.page_parts import markers, replace_part
from jaxrl_llm.config import Config, ConfigError, WriterConfig, to_dict
from jaxrl_llm.reporting.metric_writers import Copies
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.reporting.summary import QUANTILES, summarize
from jaxrl_llm.reporting.writers import MetricsWriter, write_rollouts
from jaxrl_llm.types import Extreme, Histogram, Mean, merge_metrics

ROOT = Path(__file__).parents[2]


def write_run(workdir, *, iterations=4, **changes) -> str:
  """A small run with every series that is plotted."""
  os.makedirs(workdir, exist_ok=True)
  with open(os.path.join(workdir, "config.json"), "w") as file:
    json.dump(to_dict(Config()) | changes, file)
  writer = MetricsWriter(workdir)
  writer.write(0, {"eval/accuracy": 0.25, "time/elapsed": 45.0})
  names = ("reward/correct", "policy/entropy", "optimizer/grad_norm", "clip/dropped",
           "kl/current_anchor")
  for i in range(1, iterations + 1):
    values = {name: i / 8 for name in names}
    values |= {f"log_ratio/{label}": q - 0.5 for label, q in QUANTILES.items()}
    if i % 2 == 0:
      values["eval/accuracy"] = 1 / i
    writer.write(i, values | {"time/iteration": 30.0, "time/elapsed": 45.0 + 35.0 * i})
  writer.close()
  return os.fspath(workdir)


def lines_of(workdir) -> list[str]:
  with open(os.path.join(workdir, "metrics.jsonl")) as file:
    return file.read().splitlines()


def append(workdir, text: str) -> None:
  with open(os.path.join(workdir, "metrics.jsonl"), "a") as file:
    file.write(text)


# --- summary


def test_merged_means_are_the_pooled_mean_and_not_the_mean_of_means():
  a, b = np.array([1.0, 2.0, 6.0]), np.array([10.0])
  merged = merge_metrics([{"x": Mean(a.sum(), 3.0)}, {"x": Mean(b.sum(), 1.0)}])
  value = summarize(merged)["x"]
  assert value == pytest.approx(np.concatenate([a, b]).mean())
  assert value != pytest.approx((a.mean() + b.mean()) / 2)


def test_vector_mean_gives_a_key_per_bucket_that_has_a_count():
  values = summarize({"x": Mean(np.array([2.0, 0.0, 9.0]), np.array([4.0, 0.0, 3.0]))})
  assert values == {"x/bucket_0": 0.5, "x/bucket_2": 3.0}


def test_histogram_quantiles_agree_with_numpy_within_a_bin():
  values = np.random.default_rng(0).normal(size=5000)
  edges = np.linspace(-4, 4, 81)
  counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=82)
  summary = summarize({"x": Histogram(counts, tuple(edges))})
  for label, q in QUANTILES.items():
    assert summary[f"x/{label}"] == pytest.approx(np.quantile(values, q), abs=0.1)


def test_histogram_interpolates_linearly_and_closes_its_open_bins_at_the_outermost_edges():
  inside = summarize({"x": Histogram(np.array([0, 10, 0]), (2.0, 4.0))})
  assert inside["x/p25"] == pytest.approx(2.5)
  assert inside["x/p95"] == pytest.approx(3.9)
  assert set(summarize({"x": Histogram(np.array([7, 0, 0]), (2.0, 4.0))}).values()) == {2.0}
  assert set(summarize({"x": Histogram(np.array([0, 0, 7]), (2.0, 4.0))}).values()) == {4.0}


def test_what_saw_nothing_has_no_key():
  nothing = (Mean(0.0, 0.0), Histogram(np.zeros(3), (0.0, 1.0)), Extreme(np.inf, -np.inf))
  assert [summarize({"x": metric}) for metric in nothing] == [{}] * 3
  assert summarize({"x": Extreme(-1.0, 2.0)}) == {"x/min": -1.0, "x/max": 2.0}


# --- writers and reader


def test_cut_back_drops_later_lines_and_a_torn_tail_in_both_records(tmp_path):
  from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
  workdir = write_run(tmp_path / "run")
  append(workdir, '{"iteration": 5, "rew')
  writer = MetricsWriter(workdir, Copies(WriterConfig(), workdir, {}))
  writer.cut_back(2)
  writer.write(3, {"reward/correct": 0.875})
  writer.close()
  assert [json.loads(line)["iteration"] for line in lines_of(workdir)] == [0, 1, 2, 3]
  events = EventAccumulator(os.path.join(workdir, "tensorboard")).Reload()
  tensors = events.Tensors("reward/correct")
  scalars = [(event.step, event.tensor_proto.float_val[0]) for event in tensors]
  assert scalars == [(1, 0.125), (2, 0.25), (3, 0.875)]


def test_a_torn_tail_is_neither_read_nor_appended_to(tmp_path):
  workdir = write_run(tmp_path / "run")
  append(workdir, '{"iteration": 5, "reward/correct": 0.1')
  assert read_run(workdir).metrics[-1]["iteration"] == 4
  writer = MetricsWriter(workdir)
  writer.write(5, {"reward/correct": 0.5})
  writer.close()
  assert read_run(workdir).metrics[-1] == {"iteration": 5, "reward/correct": 0.5}


def test_non_finite_numbers_are_strict_json_and_come_back(tmp_path):
  workdir = write_run(tmp_path / "run", iterations=0)
  writer = MetricsWriter(workdir)
  writer.write(1, {"a": float("nan"), "b": np.float32(np.inf), "c": -np.inf, "d": 0.1})
  writer.close()
  assert lines_of(workdir)[1] == '{"iteration": 1, "a": "nan", "b": "inf", "c": "-inf", "d": 0.1}'
  line = read_run(workdir).metrics[1]
  assert np.isnan(line["a"]) and line["b"] == np.inf and line["c"] == -np.inf and line["d"] == 0.1


def test_series_holds_only_the_iterations_that_logged_the_name(tmp_path):
  run = read_run(write_run(tmp_path / "run"))
  iterations, values = run.series("eval/accuracy")
  np.testing.assert_array_equal(iterations, [0, 2, 4])
  np.testing.assert_array_equal(values, [0.25, 0.5, 0.25])
  assert len(run.series("absent")[0]) == 0


def test_facts_of_rollouts_come_back_rounded(tmp_path):
  """Arrays by token are test_token_columns.py's."""
  rows = [{"prompt": "1+1=\n", "shape": np.array(2),
           "log_probs": np.array([[-1.23456789, -np.inf]])}]
  workdir = write_run(tmp_path / "run")
  assert write_rollouts(workdir, 12, rows).endswith("rollouts/iteration_00012.jsonl")
  write_rollouts(workdir, 3, rows)
  run = read_run(workdir)
  assert run.rollout_iterations() == [3, 12]
  written = {"prompt": "1+1=\n", "shape": 2, "log_probs": [[-1.23457, "-inf"]]}
  assert run.rollouts(12) == [written]


@pytest.mark.parametrize("bad, cause", [
    ("{oops}\n", "not JSON"),
    ('{"iteration": 9, "x": NaN}\n', "NaN is not JSON"),
    ('{"x": 1.0}\n', '"iteration" should be an integer'),
    ('{"iteration": 9, "x": "high"}\n', "x = 'high' is not a number"),
    ('{"iteration": 2}\n', "iteration 2 is already on line 3"),
    ("[1]\n", "an object was expected"),
    ("[" * 100_000 + "\n", "maximum recursion depth"),
])
def test_errors_name_file_and_line(tmp_path, bad, cause):
  workdir = write_run(tmp_path / "run")
  append(workdir, bad)
  with pytest.raises(RunError) as error:
    read_run(workdir)
  assert "metrics.jsonl, line 6" in str(error.value)
  assert cause in str(error.value)


def test_a_folder_without_a_run_is_refused_by_name(tmp_path):
  with pytest.raises(RunError, match=r"config\.json: No such file"):
    read_run(tmp_path)


# --- tables, plots, report


def test_a_part_of_a_page_is_replaced_alone(tmp_path):
  page, (begin, end) = tmp_path / "README.md", markers("sweep.py")
  page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
  for _ in range(2):
    replace_part(page, "sweep.py", "new\n")
    assert page.read_text() == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
  with pytest.raises(ConfigError, match=r"no place for the part written by run\.py"):
    replace_part(page, "run.py", "new\n")


class Page(html.parser.HTMLParser):
  """Tags, attributes and text of a page; every tag that opens must close."""

  def __init__(self, text: str):
    super().__init__()
    self.tags, self.attributes, self.text, self._open = [], [], "", []
    self.feed(text)
    assert not self._open

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs
    if tag not in ("meta", "img"):
      self._open.append(tag)

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def handle_data(self, data):
    self.text += data


def sample(prompt, pieces, log_ratio, correct):
  return {"prompt": prompt, "completion": "".join(pieces), "answer": "2", "correct": correct,
          "pieces": pieces, "log_ratio": log_ratio, "truncated": False}


def page_with(workdir, before: list[dict], after: list[dict]) -> tuple[str, Page]:
  """The report with these samples: its HTML, and what a browser makes of it."""
  with open(os.path.join(workdir, "samples.json"), "w") as file:
    json.dump({"before": before, "after": after}, file)
  with open(write_report(workdir)) as file:
    text = file.read()
  return text, Page(text)


def test_report_escapes_samples_and_config_and_needs_nothing_from_outside(tmp_path):
  attack = "<script>alert(1)</script>"
  workdir = write_run(tmp_path / "run", plugins=[attack])
  before = [sample("1+1=", [attack, "3"], [-5.0, 0.25], False), sample("4+4=", ["8"], [0.0], True)]
  after = [sample("9+9=", ["18"], [0.5], True), sample("1+1=", ["2"], [float(1)], True)]
  text, page = page_with(workdir, before, after)
  assert "&lt;script&gt;" in text and "script" not in page.tags and "link" not in page.tags
  assert attack in page.text
  sources = [value for name, value in page.attributes if name in ("src", "href")]
  assert all(source.startswith("data:image/png;base64,") for source in sources)
  assert ("title", "-5.000") in page.attributes
  assert ("style", "background:rgba(218, 54, 51, 0.70)") in page.attributes
  assert page.text.count("✓ correct") == 3
  assert page.text.count("✗ incorrect") == 1
  assert page.tags.count("section") == 3 and page.text.count("no sample for this prompt") == 2


def test_report_shows_every_character_of_prompts_answers_tokens_and_names(tmp_path):
  """Markup, quotes and templates in a text are text; a template adds no white space to tokens."""
  odd = """<b>&amp;</b> "a" 'b' {{ title }} {% raw %} </p>"""
  workdir = write_run(tmp_path / "a&b <i>", task={"name": odd})
  pieces = [odd, " x ", "\n", "<", "&", '"', "'"]
  entry = sample(odd, pieces, [0.5, None, -0.5, 0.0, 1.0, "inf", "nan"], True)
  text, page = page_with(workdir, [entry | {"answer": odd}], [])
  assert page.text.count(odd) == 5  # subtitle, changed key, prompt, answer, token
  assert f"{odd} x ↵\n<&\"'" in page.text
  assert "a&b <i>" in page.text and page.tags.count("b") == 1  # the mark of a correct answer
  assert ("title", "+0.500") in page.attributes and ("class", "tool") in page.attributes
  assert ("style", "background:rgba(128, 128, 128, 0.4)") in page.attributes
  assert "{{ title }}" in text and text.count("<b>") == 0


def test_a_build_ships_the_templates(tmp_path):
  if importlib.util.find_spec("setuptools") is None:  # to import it fails after distutils
    pytest.skip("no setuptools")
  command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
  subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
  templates = "experiments/report/templates"
  built = {path.name for path in (tmp_path / templates).iterdir()}
  assert built == {path.name for path in (ROOT / templates).iterdir()} >= {"page.html", "style.css"}
