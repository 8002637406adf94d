"""The pages of experiments/extend: short, and each one's command does what the page says."""

import http.server
import json
import re
import shlex
import threading
import time
from pathlib import Path

import forked
import pytest
from suites import quick_of

from experiments.report.rollout_rows import read_rollouts
from jaxrl_llm.tasks.tokenizer import byte_tokenizer

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "experiments" / "extend"
PAGES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "config")
TOKENIZER = byte_tokenizer()
KINDS = {"advantage", "environment", "estimator", "judge", "mapping", "mtp", "reward", "task",
         "tool", "vocabulary", "writer"}


def command(page: str) -> list[str]:
  shown = re.search(r"  python (.*?)\n\n", (FOLDER / f"{page}.py").read_text() + "\n\n", re.DOTALL)
  return shlex.split(shown[1].replace("\\\n", " ").split('"""')[0])


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
  """The pages share warm starts."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("JAXRL_LLM_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield


def run(page: str, workdir: Path, *more: str) -> tuple[list[dict], list[dict]]:
  """Runs the page's command in another folder; returns (metrics, rows of the last iteration)."""
  arguments = [f"--workdir={workdir}" if a.startswith("--workdir=") else a for a in command(page)]
  done = forked.run([*arguments, *more], ROOT)
  assert done.returncode == 0, done.stderr[-2000:]
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  rows = read_rollouts(str(workdir / "rollouts/iteration_00002.jsonl"))
  return [json.loads(line) for line in lines], rows


def test_every_kind_has_a_page_of_forty_lines():
  assert set(PAGES) >= KINDS
  for page in PAGES:
    assert len((FOLDER / f"{page}.py").read_text().splitlines()) <= 40, page
    assert f"plugins=experiments/extend/{page}.py" in " ".join(command(page))


METHODS = {
    "estimator": ("estimator", {"name": "tempered", "power": 0.5}),
    "advantage": ("advantage", {"name": "above_best", "share": 0.5}),
    "mtp": ("term", {"name": "distilled", "coef": 0.2}),
    "mapping": ("task", {"name": "dataset"}),
    "task": ("task", {"name": "backwards", "letters": 3}),
    "vocabulary": ("vocabulary", {"epsilon": 0.01, "side": "both"}),
}


@pytest.mark.parametrize("page, key, value", quick_of(
    (), {page: (page, *entry) for page, entry in METHODS.items()},
    slow=("estimator",)))
def test_the_method_is_the_run_s(tmp_path, page, key, value):
  metrics, rows = run(page, tmp_path / page)
  assert metrics[-1]["iteration"] == 2 and len(rows) == 16
  assert json.loads((tmp_path / page / "config.json").read_text())[key].items() >= value.items()
  if page == "estimator":
    check_export(tmp_path, page)
  if page == "mtp":
    assert metrics[-1]["mtp/coefficient"] == pytest.approx(0.2)
  if page == "vocabulary":
    assert 0 < metrics[-1]["vocabulary/kept_mass"] < 1
    # One optimizer batch of two is on-policy: no sampled token is outside there, and few later.
    assert metrics[-1]["vocabulary/out_of_set"] < 0.1
  if page == "task":
    assert all(row["answer"] == row["prompt"][::-1] and len(row["prompt"]) == 3 for row in rows)


def check_export(folder: Path, page: str) -> None:
  """The command of README.md works, and without its flag the folder's code is not run."""
  shown = re.search(r"python (experiments/export\.py .*)\n", (FOLDER / "README.md").read_text())[1]
  flags = [f"--workdir={folder / page}", f"--out={folder / 'out'}"]
  arguments = [a for a in shlex.split(shown) if not a.startswith(("--workdir=", "--out="))] + flags
  for given, code in ((arguments, 0), ([a for a in arguments if a != "--plugins=run"], 1)):
    done = forked.run(given, ROOT)
    assert done.returncode == code, done.stderr[-2000:]
  assert f"experiments/extend/{page}.py, whose code" in done.stderr
  assert "Fix: --plugins=run" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.nightly
def test_components_are_logged_and_weighed(tmp_path):
  metrics, rows = run("reward", tmp_path)
  for row in rows:
    parts = row["components"]
    expected = parts["task"] + 0.2 * parts["short"] + 0.1 * parts["equals"]
    assert row["reward"] == pytest.approx(expected) and parts["task"] == row["correct"]
  for name in ("task", "short", "equals"):
    mean = sum(row["components"][name] for row in rows) / len(rows)
    assert metrics[-1][f"reward/component/{name}"] == pytest.approx(mean)


@pytest.mark.nightly
def test_the_writer_gets_every_line(tmp_path):
  metrics, _ = run("writer", tmp_path)
  lines = [line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()]
  assert [int(line[0]) for line in lines] == [0, 1, 2]
  assert lines[0][1:] == ["", ""]  # the evaluation before the first rollouts
  for line, values in zip(lines[1:], metrics[1:], strict=True):
    assert [float(x) for x in line[1:]] == [values["reward/mean"], values["rollout/length"]]
  assert list((tmp_path / "tensorboard").glob("events*"))


class Judge(http.server.BaseHTTPRequestHandler):
  """Scores a completion by its length, but never one row of each batch: its call is late."""

  seen = 0

  def do_POST(self):
    asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
    type(self).seen += 1
    if type(self).seen == 20:  # after the probe and both evaluations of 8: a training row
      time.sleep(60)
      return
    body = json.dumps({"score": len(asked["completion"]) / 100}).encode()
    self.send_response(200)
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, *_):
    """Says nothing."""


@pytest.mark.nightly
def test_a_late_judge_leaves_its_row_out_and_no_other(tmp_path):
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    url = f"--config.reward.url=http://127.0.0.1:{server.server_port}"
    run("judge", tmp_path, url, "--config.reward.timeout=20")  # a busy machine is slow for all rows
  finally:
    server.shutdown()
  rows = [json.loads(line) for path in sorted((tmp_path / "rollouts").glob("*.jsonl"))
          for line in path.read_text().splitlines()]
  late = [row for row in rows if row["unscored_reason"]]
  assert [row["unscored_reason"].split(":")[0] for row in late] == ["timeout"]
  assert not late[0]["keep"] and all(row["keep"] for row in rows if row is not late[0])
  kept = rows[1] if rows[0] is late[0] else rows[0]
  assert kept["components"]["judge"] == pytest.approx(len(kept["completion"]) / 100)


@pytest.mark.nightly
def test_the_tool_answers_in_the_row(tmp_path):
  metrics, rows = run("tool", tmp_path)
  assert metrics[-1]["tool/calls"] > 0 and metrics[-1]["tool/tokens"] > 0
  called = [row for row in rows if re.match(r"\[\d+\]", row["completion"]) and 2 in row["turn_id"]]
  assert called, "no row called the tool"
  for row in called:
    base = int(re.match(r"\[(\d+)\]", row["completion"])[1])
    shown = [t for t, turn in zip(row["tokens"], row["turn_id"], strict=True) if not turn]
    assert TOKENIZER.decode(shown[row["prompt_length"]:]) == f"{base**2};"


@pytest.mark.nightly
def test_the_environment_knows_each_row_s_problem(tmp_path):
  _, rows = run("environment", tmp_path)
  judged = 0
  for row in rows:
    inserted = [t for t, turn in zip(row["tokens"], row["turn_id"], strict=True) if not turn]
    signs = TOKENIZER.decode(inserted[row["prompt_length"]:])
    for sign, guess in zip(signs, re.findall(r"\](\d+)", row["completion"]), strict=False):
      assert (int(guess) < int(row["answer"])) == (sign == "<")
      judged += 1
  assert judged, "no guess was judged"
