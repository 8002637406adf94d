"""The command, compiled for TPUs that are not there, and its loops against arithmetic."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import forked
import programs
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TPU = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None,
                         reason="needs libtpu: pip install -e '.[plan-tpu]'")


def command(*arguments: str, interpreter: bool = False) -> subprocess.CompletedProcess:
  environment = os.environ | programs.ENVIRONMENT | {"JAXRL_LLM_CACHE": "", "XLA_FLAGS": ""}
  config = f"--config={ROOT / 'tests/experiments/planning/planned_config.py'}"
  return forked.run([str(ROOT / "experiments/plan.py"), config, *arguments], ROOT, environment, 900,
                    interpreter)


def planned(tmp_path, *arguments: str, status: int = 0) -> tuple[dict, str]:
  path = tmp_path / "plan.json"
  done = command(f"--json={path}", *arguments)
  assert done.returncode == status, done.stderr[-2000:]
  data = json.loads(path.read_text())
  return data | {"programs": {entry["name"]: entry for entry in data["programs"]}}, done.stdout


@TPU
def test_a_whole_iteration_on_four_chips(tmp_path):
  data, text = planned(tmp_path, "--target=v5e:2x2")
  assert list(data["programs"]) == ["hand_over_rest", "hand_over_block", "generate",
                                    "score", "step"]
  generate, step = data["programs"]["generate"], data["programs"]["step"]
  for name in data["programs"]:
    assert f"\n{name} " in text
  # Two windows of 8 columns: the first token comes from the prefill, the last needs no column.
  assert generate["trips"] == [8, 7] and len(generate["per_token_step"]) == 2
  assert generate["unknown_loops"] == step["unknown_loops"] == []
  # 8 rows on each chip; the head is 64 x 32.
  assert generate["per_token_step"][0]["flops"]["head"] == 2 * 8 * 64 * 32
  assert generate["run"]["flops"]["head"] == 16 * 2 * 8 * 64 * 32
  assert generate["per_token_step"][0]["collective_bytes"] == 0
  # Every chip holds a quarter of the f32 parameters, and two moments of each.
  assert step["bytes"]["optimizer"] == pytest.approx(2 * step["bytes"]["parameters"], rel=0.01)
  assert step["bytes"]["needed"] > step["bytes"]["parameters"] + step["bytes"]["optimizer"]
  assert step["runs_per_iteration"] == 2 and step["compile_seconds"] > 0
  for entry in data["programs"].values():
    assert entry["advice"] == [] and 0 <= entry["mfu"] <= 1


@TPU
def test_the_engine_on_one_chip(tmp_path):
  data, _ = planned(tmp_path, "--target=v5e:1", "--programs=prefill,admit,decode",
                    "--config.mesh.fsdp=1", "--config.rollout.slots=16", "--config.rollout.chunk=8")
  decode = data["programs"]["decode"]
  assert list(data["programs"]) == ["prefill", "admit", "decode"]
  assert decode["trips"] == [8] and decode["runs_per_iteration"] == 2 * 2
  assert decode["run"]["collectives"] == {}
  # 16 rows, 2 layers, 2 heads of 32, keys and values in f32, at least 32 columns
  assert decode["bytes"]["cache"] >= 16 * 2 * 2 * 32 * 2 * 4 * 32


@TPU
def test_what_does_not_fit_names_a_key(tmp_path):
  data, text = planned(tmp_path, "--target=v5e:1", "--programs=step", "--config.mesh.fsdp=1",
                       "--config.model.width=8192", "--config.model.mlp_width=65536", status=1)
  assert "does not fit" in text and data["programs"]["step"]["advice"]
  assert "mesh.fsdp" in text


def test_a_users_mistake_is_one_line():
  done = command("--target=v5e:1", "--config.pretrained=org/unknown")
  assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr
  assert done.stderr.splitlines()[-1].startswith("error: pretrained = 'org/unknown'")
