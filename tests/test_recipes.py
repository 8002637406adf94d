"""Every file in configs/ loads and passes the checks of a run; its header agrees with it."""

import dataclasses
import functools
import importlib.util
import operator
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from jaxrl_llm import parallel, tasks
from jaxrl_llm.config import ConfigError, ModelConfig, check, from_dict
from jaxrl_llm.fields import refuse_unread
from jaxrl_llm.models import Model
from jaxrl_llm.planning.shapes import SHAPES
from jaxrl_llm.presets import PRESETS
from jaxrl_llm.runs import setup
from jaxrl_llm.tasks import prompts

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs").glob("*.py"))
# Of the others the header is no lab record: they run on a laptop.
RECIPES = [path for path in FILES if not path.name.startswith(("quickstart", "offpolicy"))]


def load(path: Path):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@functools.cache
def parameter_count(pretrained: str) -> int:
  model = Model(ModelConfig(**SHAPES[pretrained][1], scan_layers=True))
  return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def sizes(cfg) -> dict[str, float]:
  """Numbers of the header: bytes over all devices, or on one device if it says so, and COUNTS."""
  m, length = ModelConfig(**SHAPES[cfg.pretrained][1]), cfg.row_length
  count = parameter_count(cfg.pretrained)
  devices = cfg.mesh.fsdp * cfg.mesh.tensor
  micro_rows = cfg.rows // cfg.updates.optimizer_batches // cfg.updates.micro_batches
  # f32: parameters, gradients, two moments, the starting parameters, stale samplers
  state = 4 * (5 + cfg.updates.staleness) * count
  cache = 2 * 2 * m.num_layers * m.num_kv_heads * m.head_dim * length
  inputs = 2 * m.num_layers * m.width * length  # remat=full keeps the input of each block
  scores = (4 + 2) * m.num_heads * length**2  # in f32, and as bf16 weights
  block = scores + 2 * 3 * m.mlp_width * length
  return dict(count=count, state=state, cache=cache, rows=cfg.rows, length=length,
              backward=inputs + block, devices=devices, micro_rows=micro_rows,
              stale=cfg.updates.staleness, sampling=(state + cfg.rows * cache) / devices,
              updating=(state + micro_rows * (inputs + block)) / devices)


def number(x: float) -> str:
  return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def estimate(cfg) -> str:
  """The lines of the header that start with "Estimate"."""
  s = {name: value if name in COUNTS else number(value / 1e9)
       for name, value in sizes(cfg).items()}
  total = number(sizes(cfg)["cache"] * s["rows"] / 1e9)
  each = "each" if s["devices"] > 1 else "in all"
  older = f", {s['stale']} older ones" if s["stale"] else ""
  devices = f"{s['devices']} device{'s' if s['devices'] > 1 else ''}"
  return f"""Estimate, by arithmetic from the shapes and not by measurement (1 GB = 1e9 bytes):
  parameters       {s['count']} billion
  training state   {s['state']} GB, {20 + 4 * s['stale']} bytes a parameter in f32: parameters,
                   gradients, Adam's moments, the starting parameters{older}
  cache            {s['cache']} GB in bf16 for a row of {s['length']:,} tokens,
                   {total} GB for the {s['rows']:,} rows that are sampled at once
  backward pass    {s['backward']} GB a row: inputs of all blocks in bf16,
                   scores (f32 and bf16) and MLP of one block
  {devices:<17}{s['sampling']} GB {each} while sampling,
                   {s['updating']} GB {each} while updating {s['micro_rows']} rows at once"""


def ready(path: Path, *preset: str):
  """The frozen config of a file, after the checks of a run."""
  cfg = from_dict(load(path).get_config(*preset))
  return setup.resolve(check(cfg))


COUNTS = ("rows", "length", "devices", "micro_rows", "stale")  # the others are bytes or parameters

every_recipe = pytest.mark.parametrize("path", RECIPES, ids=operator.attrgetter("stem"))


def test_there_are_recipes():
  assert len(RECIPES) == 8
  assert {ready(path).pretrained for path in RECIPES} == SHAPES.keys()


@pytest.mark.parametrize("path", FILES, ids=operator.attrgetter("stem"))
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
def test_the_default_is_the_preset_that_the_file_names(path):
  module = load(path)
  assert ready(path) == ready(path, module.PRESET)
  assert module.PRESET in PRESETS


@every_recipe
def test_the_header_is_a_lab_record(path):
  header = load(path).__doc__
  assert max(map(len, path.read_text().splitlines())) <= 100
  command = f"python experiments/main.py --config=configs/{path.name} --workdir="
  assert header.splitlines()[2].strip().startswith(command)
  for line in header.splitlines():
    assert "--config=" not in line or f"--config=configs/{path.name}" in line
  assert "\nPublished: " in header and "\nNot run here.\n" in header and "\nSource: " in header


@every_recipe
def test_the_estimate_is_that_of_the_config(path):
  cfg, header = ready(path), load(path).__doc__
  assert estimate(cfg) in header
  # The text would notice a change of rows, of lengths or of the model.
  r = cfg.rollout
  for change in (dict(max_new_tokens=r.max_new_tokens + 64), dict(group_size=2 * r.group_size)):
    changed = dataclasses.replace(cfg, rollout=dataclasses.replace(r, **change))
    assert estimate(changed) not in header
  other = "Qwen/Qwen3-1.7B" if cfg.pretrained != "Qwen/Qwen3-1.7B" else "Qwen/Qwen3-4B"
  assert estimate(dataclasses.replace(cfg, pretrained=other)) not in header


@every_recipe
def test_the_devices_of_the_header_hold_the_run(path):
  cfg = ready(path)
  s, (_, shape) = sizes(cfg), SHAPES[cfg.pretrained]
  assert max(s["sampling"], s["updating"]) < (16e9 if s["devices"] == 1 else 80e9)
  assert shape["width"] % cfg.mesh.fsdp == 0, "parameters would be replicated"
  mesh = SimpleNamespace(shape={"data": 1, "fsdp": cfg.mesh.fsdp, "tensor": cfg.mesh.tensor})
  parallel.check(cfg, mesh)


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


@pytest.mark.parametrize("stem", ["qwen3_4b_ctpo_deepscaler", "qwen3_14b_ctpo_deepscaler"])
def test_ctpo_has_the_numbers_of_its_script(stem):
  """The training script of arXiv 2605.07331."""
  cfg = ready(ROOT / "configs" / f"{stem}.py")
  e, o, r = cfg.estimator, cfg.optimizer, cfg.rollout
  assert (e.log_low, e.log_high, e.log_dual, e.power) == (0.025, 0.05, 0.05, 0.5)
  c = cfg.correction
  assert (c.level, c.cap, c.batch_normalize) == ("sequence", 5.0, False)
  assert (o.learning_rate, o.warmup_steps, o.b1, o.b2) == (1e-6, 0, 0.9, 0.999)
  assert (o.weight_decay, o.max_grad_norm) == (0.01, 1.0)
  assert (r.prompts, r.group_size, r.max_new_tokens, r.temperature) == (512, 8, 8000, 1.0)
  assert r.prompts // cfg.updates.optimizer_batches == 32
  assert (cfg.iterations, cfg.checkpoint.every) == (305, 20)
  assert (cfg.evaluation.every, cfg.evaluation.samples) == (20, 32)


@pytest.mark.parametrize(
    "stem", ["qwen3_4b_ctpo_deepscaler", "qwen3_14b_ctpo_deepscaler", "qwen25_7b_otb"])
def test_a_recipe_that_was_published_with_tools_says_that_it_has_none(stem):
  """Its task has no tool, so that a run with turns would be refused."""
  says = " ".join(load(ROOT / "configs" / f"{stem}.py").__doc__.split())
  cfg = ready(ROOT / "configs" / f"{stem}.py")
  assert tasks.TASKS[cfg.task.name].function.tool is None and cfg.rollout.max_turns == 0
  assert "has no tool: here a problem is answered in one turn" in says


def test_tempo_has_the_numbers_of_its_script():
  """The scripts of arXiv 2509.18314."""
  cfg = ready(ROOT / "configs/qwen3_1_7b_tempo_math.py")
  r = cfg.rollout
  assert (r.prompts, r.group_size, r.prompts // cfg.updates.optimizer_batches) == (512, 7, 64)
  assert (r.max_prompt_tokens, r.max_new_tokens, cfg.optimizer.learning_rate) == (1024, 8192, 1e-6)
  assert (cfg.estimator.clip_low, cfg.estimator.clip_high, cfg.evaluation.every) == (0.2, 0.28, 100)
