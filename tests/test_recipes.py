"""Every file in configs/ loads and passes the checks of a run; its header agrees with it."""

import functools
import importlib.util
import json
import operator
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from experiment_files import load
from suites import quick_of

from experiments.planning.shapes import SHAPES
from jaxrl_llm import tasks
from jaxrl_llm.config import ConfigError, ModelConfig, from_dict
from jaxrl_llm.fields import refuse_unread
from jaxrl_llm.late import loaded
from jaxrl_llm.models import Model
from jaxrl_llm.parallel import divisions
from jaxrl_llm.presets import PRESETS
from jaxrl_llm.tasks import mixture, prompts
from jaxrl_llm.tasks.dataset import _verifier
from jaxrl_llm.wiring import setup

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs").glob("*.py"))
# Of the others the header is no lab record: they run on a laptop.
RECIPES = [path for path in FILES if not path.name.startswith(
    ("quickstart", "offpolicy", "chain", "own_data", "smollm2"))]


@functools.cache
def parameter_count(pretrained: str) -> int:
  model = Model(ModelConfig(**SHAPES[pretrained][1], scan_layers=True))
  return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def ready(path: Path, *preset: str):
  """The frozen config of a file, after the checks of a run; as it is where `auto` chooses by a
  checkpoint of the hub.
  """
  cfg = from_dict(load(path).get_config(*preset))
  by_checkpoint = cfg.pretrained and cfg.optimizer.learning_rate == "auto"
  return cfg if by_checkpoint else setup.resolve(cfg)


every_recipe = pytest.mark.parametrize("path", RECIPES, ids=operator.attrgetter("stem"))


def test_there_are_recipes():
  assert {ready(path).pretrained for path in RECIPES} == SHAPES.keys()


@pytest.mark.parametrize("path", quick_of(
    {"quickstart"}, {path.stem: (path,) for path in FILES},
    slow={path.stem for path in FILES if path not in RECIPES[1:]} - {"quickstart"}))
def test_every_file_takes_every_preset(path):
  default = ready(path)
  for name, keys in PRESETS.items():
    cfg = ready(path, name)
    assert cfg.estimator.name == keys["estimator.name"]
    assert cfg.advantage.name == keys["advantage.name"]
    # A preset chooses components; the file chooses task, sizes and optimizer.
    same = ("task", "rollout", "optimizer")
    assert [getattr(cfg, x) for x in same] == [getattr(default, x) for x in same]
  with pytest.raises(ConfigError, match=r"'grop'.*Did you mean 'grpo'"):
    load(path).get_config("grop")


@every_recipe
def test_the_header_is_a_lab_record(path):
  module = load(path)
  assert ready(path) == ready(path, module.PRESET) and module.PRESET in PRESETS
  header = module.__doc__
  assert max(map(len, path.read_text().splitlines())) <= 100
  command = f"python experiments/main.py --config=configs/{path.name} --workdir="
  assert header.splitlines()[2].strip().startswith(command)
  for line in header.splitlines():
    assert "--config=" not in line or f"--config=configs/{path.name}" in line
  assert "\nPublished: " in header and "\nNot run here.\n" in header and "\nSource: " in header
  plans = sorted((ROOT / "experiments/plans").glob(f"{path.stem}*.json"))
  assert header.count("Planned for") == len(plans) >= 1 and "REFUSED" not in header
  for programs in (json.loads(plan.read_text())["programs"] for plan in plans):
    assert {"decode", "step"} <= {program["name"] for program in programs}


def plan_of(path: Path) -> dict:
  return json.loads((ROOT / "experiments/plans" / f"{path.stem}.json").read_text())


def test_the_page_of_machines_is_rendered_from_plans(tmp_path):
  page, copy = ROOT / "experiments/launch/from_laptop_to_pod.md", tmp_path / "page.md"
  copy.write_text(page.read_text().replace("v6e:1", "v7x:1"))
  load(ROOT / "experiments/plans" / "render.py").render_ladder(copy)
  assert copy.read_text() == page.read_text()


def test_headers_are_rendered_from_plans(tmp_path):
  render = load(ROOT / "experiments/plans" / "render.py")
  for path in RECIPES:
    text = path.read_text()
    stale = text.replace(" GB each; ", " GB each; 7 + ")
    assert stale != text
    (tmp_path / path.name).write_text(stale)
  render.quote(tmp_path)
  assert {path.name: (tmp_path / path.name).read_text() for path in RECIPES} == {
      path.name: path.read_text() for path in RECIPES}


def test_the_page_of_plans_is_rendered_from_them(tmp_path):
  folder = ROOT / "experiments/plans"
  page, render = tmp_path / "README.md", load(folder / "render.py")
  page.write_text((folder / "README.md").read_text().replace(RECIPES[0].stem, "another"))
  assert page.read_text() != (folder / "README.md").read_text()
  render.render(tmp_path)
  assert page.read_text() == (folder / "README.md").read_text()


@every_recipe
def test_the_machine_of_the_header_takes_the_rows(path):
  cfg, data = ready(path), plan_of(path)
  _, shape = SHAPES[cfg.pretrained]
  assert cfg.mesh.fsdp * cfg.mesh.tensor == data["devices"]
  assert shape["width"] % cfg.mesh.fsdp == 0, "parameters would be replicated"
  assert shape["width"] // cfg.mesh.fsdp >= 64, "narrower shards are gathered by all-reduces"
  mesh = SimpleNamespace(shape={"data": 1, "fsdp": cfg.mesh.fsdp, "tensor": cfg.mesh.tensor})
  divisions.check(divisions.RowSections.of(cfg), mesh)


def planned_step(path: Path, folder: Path) -> dict:
  """The step of a recipe as it compiles now, on the machine of its recorded plan."""
  name, paths = folder / "plan.json", [str(ROOT), os.environ.get("PYTHONPATH", "")]
  environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(paths)}
  subprocess.run(
      [sys.executable, "experiments/plan.py", f"--config=configs/{path.name}", "--programs=step",
       f"--target={plan_of(path)['target']}", f"--json={name}"],
      cwd=ROOT, check=True, env=environment)
  return json.loads(name.read_text())["programs"][0]


# Long rows take a compiler minutes, so that their recipes are compiled on request; planning/
# compiles small networks as the recipes are compiled.
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None,
                    reason="needs libtpu: pip install -e '.[plan-tpu]'")
@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem,
                 marks=pytest.mark.nightly if ready(path).rollout.row_length <= 1024
                 else pytest.mark.plans)
    for path in RECIPES])
def test_the_step_compiles_as_planned(path, tmp_path):
  step = planned_step(path, tmp_path)
  recorded = next(entry for entry in plan_of(path)["programs"] if entry["name"] == "step")
  assert not step["refused"]
  assert step["bytes"]["total"] == pytest.approx(recorded["bytes"]["total"], rel=0.1)
  assert step["run"]["collective_bytes"] == pytest.approx(recorded["run"]["collective_bytes"],
                                                          rel=0.1)


def extras_of(cfg) -> set[str]:
  """Extras of the package that a run of a config imports."""
  data = cfg.task.data
  kinds = {_verifier(source) for source in mixture.parts(data)}
  files = [path for path in (data.path, data.heldout_path) if path]
  read_by_us = all(path.endswith((".json", ".jsonl", ".csv", ".tsv")) for path in files)
  return ({"math"} & kinds) | (set() if read_by_us else {"data"}) | (
      set() if cfg.rollout.quantization == "none" else {"quantization"})


def lacking_extras(setup_script: str) -> dict[str, set[str]]:
  """Extras that recipes need and a launch script's default does not install, by recipe."""
  installed = set(re.search(r"EXTRAS:-([a-z,]+)}", setup_script)[1].split(","))
  lacking = {path.stem: extras_of(ready(path)) - installed for path in RECIPES}
  return {stem: extras for stem, extras in lacking.items() if extras}


def test_a_worker_has_the_extras_that_recipes_need():
  script = (ROOT / "experiments/launch/setup.sh").read_text()
  assert lacking_extras(script) == {}
  assert lacking_extras(script.replace("tpu,data,math", "tpu"))["qwen3_4b_ctpo_v5e64"] == {
      "data", "math"}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_have_as_many_parameters_as_their_cards_say(name):
  assert round(parameter_count(name) / 1e9, 1) == SHAPES[name][0]


@every_recipe
def test_prompts_and_columns_can_be_read(path):
  cfg = ready(path).task
  assert cfg.name == "dataset" and cfg.data.mapping != "auto"
  refuse_unread(cfg.data, "task.data.")
  thinking = prompts.template_arguments(cfg.prompt.arguments).get("enable_thinking")
  if "ctpo_deepscaler" in path.stem:
    assert thinking is False
  # its verifier reads the last box, so that the prompt has to ask for one
  if cfg.data.mapping == "math":
    assert "\\boxed{}" in cfg.prompt.system + cfg.prompt.suffix


@pytest.mark.parametrize(
    "stem", ["qwen3_4b_ctpo_deepscaler", "qwen3_14b_ctpo_deepscaler", "qwen25_7b_otb"])
def test_a_recipe_that_was_published_with_tools_says_that_it_has_none(stem):
  """Its task brings no tool, and the recipe sets none."""
  says = " ".join(load(ROOT / "configs" / f"{stem}.py").__doc__.split())
  cfg = ready(ROOT / "configs" / f"{stem}.py")
  assert loaded(tasks.TASKS[cfg.task.name].function).tool is None and cfg.rollout.max_turns == 0
  assert "but here a problem is answered in one turn, without code" in says
