"""A run that trains adapters, up to its export: nothing frozen is saved or moves."""

import dataclasses
import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smallest
from flax.traverse_util import flatten_dict

from experiments.commands import saved
from jaxrl_llm.config import ConfigError, ParametersConfig, to_dict
from jaxrl_llm.models import hf, trainable
from jaxrl_llm.models.hf.errors import CheckpointError
from jaxrl_llm.runs.run_state import abstract_saved, first_state, restored_state
from jaxrl_llm.store import checkpoints
from jaxrl_llm.store.checkpoints import Checkpoints, TornCheckpointsError, iterations
from jaxrl_llm.wiring import sampler, setup
from jaxrl_llm.wiring.warm_start import warm_start

LORA = {"parameters.train": "lora", "parameters.lora_rank": 2}


def config(**keys):
  """A resolved config of the smallest run, its warm start three steps long."""
  return smallest.resolved(**{"warm_start.steps": 3, "warm_start.batch_size": 8} | keys)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """(folder, built, start, run): a LoRA run with one checkpoint of changed adapters."""
  return begin(tmp_path_factory.mktemp("lora") / "run", config(**LORA))


def begin(folder, cfg, iteration=3):
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(to_dict(cfg)))
  built = setup.build(*saved.read_config(folder, jax.devices()[:1]))
  start = warm_start(built.cfg, built.learner, built.task.tokenizer, folder)
  going = first_state(built.learner, start)
  changed = jax.tree.map(lambda x: x + 0.01, going.state.params)
  going = dataclasses.replace(going, state=going.state.replace(params=changed))
  checkpoints = Checkpoints(folder, built.cfg.checkpoint)
  checkpoints.save(0, first_state(built.learner, start).saved())
  checkpoints.save(iteration, going.saved())
  checkpoints.close()
  return folder, built, start, going


def same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def saved_keys(folder) -> list[str]:
  metadata = (folder / "checkpoints" / "3" / "default" / "_METADATA").read_text()
  return list(json.loads(metadata)["tree_metadata"])


@pytest.mark.slow
def test_the_warm_start_trains_the_adapters_alone(run):
  _, built, start, _ = run
  initial = jax.jit(built.learner.model.init)(jax.random.key(built.cfg.seed))
  fresh = trainable.frozen_of(initial, built.cfg.parameters)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), start.frozen, fresh)
  assert all(float(jnp.abs(x).max()) > 0
             for keys, x in flatten_dict(start.params["lora"]).items() if keys[-1] == "b")


def test_the_warm_start_is_taken_from_the_folder_to_the_bit(run):
  folder, built, start, _ = run
  again = warm_start(built.cfg, built.learner, built.task.tokenizer, folder)
  same((again.params, again.frozen), (start.params, start.frozen))


def test_a_checkpoint_holds_no_frozen_parameter(run):
  folder, built, start, going = run
  keys = saved_keys(folder)
  assert any("'lora'" in key for key in keys) and not any("embedding" in key for key in keys)
  checkpoints = Checkpoints(folder, built.cfg.checkpoint)
  iteration, tree = checkpoints.restore(abstract_saved(built.learner))
  checkpoints.close()
  back = restored_state(tree, start)
  assert iteration == 3
  same(back.state, going.state)


def test_restored_parameters_are_those_of_the_run(run):
  folder, built, start, going = run
  iteration, params = saved.restore_trained(built.cfg, built.learner, folder)
  assert iteration == 3
  same(params, built.learner.merged(going.state))
  first, before = saved.restore_trained(built.cfg, built.learner, folder, "0")
  assert first == 0
  same(before, built.learner.merged(start))
  differ = jax.tree.map(lambda a, b: bool((a != b).any()), params, before)
  assert differ["blocks"][0]["attention"]["query"] and not differ["embedding"]


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(run, tmp_path):
  folder, built, *_ = run
  with pytest.raises(ConfigError, match="iterations 0, 3"):
    saved.restore_trained(built.cfg, built.learner, folder, "7")
  with pytest.raises(ConfigError, match="no checkpoint"):
    saved.choose(tmp_path)
  with pytest.raises(ConfigError, match="no run's folder"):
    saved.read_config(tmp_path)
  copy = tmp_path / "torn"
  shutil.copytree(folder, copy)
  shutil.rmtree(copy / "checkpoints" / "3" / "default")
  with pytest.raises(TornCheckpointsError, match=r"another of the checkpoints \[0\]"):
    saved.restore_trained(built.cfg, built.learner, copy)
  assert iterations(copy) == [0, 3]  # reading sets nothing aside


@pytest.mark.slow
def test_the_exported_directory_computes_what_the_run_does(run, tmp_path):
  folder, built, _, going = run
  assert saved.export(folder, tmp_path / "out") == 3
  model, params, _ = hf.load_pretrained(tmp_path / "out")
  same(params, built.learner.merged(going.state))
  assert dataclasses.replace(model.config, family="") == built.learner.model.config
  with pytest.raises(CheckpointError):
    saved.export(folder, tmp_path / "out")
  wrong = built.learner.merged(
      going.state.replace(params=jax.tree.map(lambda x: x + 1e-3, going.state.params)))
  with pytest.raises(AssertionError):
    same(params, wrong)


def test_an_adapter_and_its_base_are_the_merged_parameters(run, tmp_path):
  from safetensors.numpy import load_file

  folder, built, _, going = run
  saved.export_adapter(folder, tmp_path / "adapter")
  tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
  a, b = (tensors[f"base_model.model.model.layers.0.mlp.down_proj.lora_{x}.weight"] for x in "AB")
  expected = built.learner.merged(going.state)["blocks"][0]["mlp"]["down"]
  base = np.asarray(going.state.frozen["blocks"][0]["mlp"]["down"])
  np.testing.assert_allclose(base + 16.0 / 2 * (b @ a).T, expected, atol=1e-5)
  with pytest.raises(ConfigError, match="stored in float32"):
    saved.export_adapter(folder, tmp_path / "half", dtype="bfloat16")


@pytest.fixture
def adapter(run, tmp_path):
  folder, built, start, _ = run
  saved.export_adapter(folder, tmp_path / "adapter")
  initial = start._replace(params=jax.tree.map(jnp.zeros_like, start.params))
  hf.save_pretrained(tmp_path / "base", built.learner.model, built.learner.merged(initial),
                     tokenizer=built.task.tokenizer)
  edit(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path="base")
  return tmp_path / "adapter"


def edit(file, **changes):
  file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.slow
def test_a_run_can_start_from_an_adapter(run, adapter, tmp_path, caplog):
  """Its base sets shapes and tokenizer; the parameters are those of the run that made it."""
  _, built, _, going = run
  edit(tmp_path / "base" / "config.json", max_position_embeddings=7, eos_token_id=[1, 5])
  (tmp_path / "base" / "generation_config.json").unlink(missing_ok=True)
  cfg = config(**{"pretrained": str(adapter), "warm_start.steps": 0})
  cfg, task, learner = setup.build_learner(cfg, jax.devices()[:1])
  assert dataclasses.replace(learner.model.config, family="") == built.learner.model.config
  assert learner.model.origin in (str(adapter / ".." / "base"), str(tmp_path / "base"))
  assert task.stop_ids == (1, 5)
  assert "max_new_tokens = 8" in caplog.text and "made for 7 positions" in caplog.text
  start = warm_start(cfg, learner, task.tokenizer, tmp_path)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), start.params,
               built.learner.merged(going.state))
  again = config(**LORA, **{"pretrained": str(adapter), "warm_start.steps": 0})
  second = begin(tmp_path / "second", again)[0]
  with pytest.raises(ConfigError, match="started from the adapter"):
    saved.export_adapter(second, tmp_path / "none")


def test_a_base_that_is_gone_is_one_line(adapter, tmp_path):
  shutil.rmtree(tmp_path / "base")
  cfg = config(**{"pretrained": str(adapter), "warm_start.steps": 0})
  with pytest.raises(ConfigError, match=r"its base 'base' was not found .* Fix: ") as error:
    setup.build_learner(cfg, jax.devices()[:1])
  assert "\n" not in str(error.value)


def test_sampling_defaults_of_a_checkpoint_are_shown(adapter, tmp_path, caplog):
  (tmp_path / "base" / "generation_config.json").write_text('{"top_p": 0.8}')
  setup.log_sampling(str(adapter), {"temperature": 1.0})
  assert "top_p = 0.8 (here 1.0)" in caplog.text


@pytest.mark.slow
def test_a_run_from_a_checkpoint_keeps_what_it_changed_alone(run, tmp_path):
  """The folder holds no copy of the export that it starts from, and frozen leaves their dtype."""
  folder, *_ = run
  saved.export(folder, tmp_path / "base", dtype="bfloat16")
  cfg = config(**{"parameters.train": "selected", "parameters.patterns": ("final_norm",),
                  "pretrained": str(tmp_path / "base"), "warm_start.steps": 0})
  workdir, built, start, going = begin(tmp_path / "second", cfg)
  assert not (workdir / "warm_start").exists()
  assert start.params["selected"]["final_norm"]["scale"].dtype == jnp.float32
  assert {x.dtype for x in jax.tree.leaves(start.frozen)} == {jnp.dtype(jnp.bfloat16)}
  _, params = saved.restore_trained(built.cfg, built.learner, workdir)
  same(params, built.learner.merged(going.state))
  # keys that we do not read come along from the base
  config_file = tmp_path / "base" / "config.json"
  config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {"bos_token_id": 5}))
  saved.export(workdir, tmp_path / "again")
  assert json.loads((tmp_path / "again" / "config.json").read_text())["bos_token_id"] == 5
  same(hf.load_pretrained(tmp_path / "again")[1], params)
  with pytest.raises(ConfigError, match="holds only low-rank adapters"):
    saved.export_adapter(workdir, tmp_path / "none")


def test_training_everything_needs_no_start(tmp_path):
  workdir, built, start, going = begin(tmp_path / "all", config(**{"warm_start.steps": 0}))
  assert start.frozen is None and built.cfg.parameters == ParametersConfig()
  # what a checkpoint of adapters must not hold
  assert any("embedding" in key for key in saved_keys(workdir))
  shutil.rmtree(workdir / "warm_start")
  same(saved.restore_trained(built.cfg, built.learner, workdir)[1], going.state.params)


def test_a_run_that_sampled_in_int8_is_read_without_the_library(tmp_path, monkeypatch):
  """And one with a shared prompt cache on any number of devices: nobody samples as the run did."""
  cfg = config(**{"warm_start.steps": 0})
  cfg = dataclasses.replace(cfg, rollout=dataclasses.replace(
      cfg.rollout, quantization="int8", slots=8, shared_prefix=True))
  monkeypatch.setitem(sys.modules, "qwix", None)
  with pytest.raises(ConfigError, match="needs qwix"):
    setup.resolve(cfg)
  workdir, built, _, going = begin(tmp_path / "run", cfg)
  assert built.cfg.rollout == dataclasses.replace(cfg.rollout, quantization="none",
                                                  shared_prefix=False)
  wide = setup.build(*saved.read_config(workdir, jax.devices()[:4]))
  assert wide.sampler.rollout_mesh.size == 4
  assert saved.export(workdir, tmp_path / "out") == 3
  same(hf.load_pretrained(tmp_path / "out")[1], built.learner.merged(going.state))


def test_an_export_starts_no_tool(run, tmp_path, monkeypatch):
  """Nothing is sampled, so there is nothing to close, also if the export is refused."""
  def unexpected(*_):
    raise AssertionError("an environment was made")

  monkeypatch.setattr(sampler, "make_run_environment", unexpected)
  folder, built, *_ = run
  with pytest.raises(AssertionError):
    setup.build(built.cfg, jax.devices()[:1])
  assert saved.export(folder, tmp_path / "out") == 3
  saved.export_adapter(folder, tmp_path / "adapter")
  with pytest.raises(ConfigError):
    saved.export(folder, tmp_path / "none", "7")


def test_a_folder_of_another_configuration_names_what_it_lacks(tmp_path):
  """Not handed on half-read: a leaf that the folder never had."""
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  like = jax.ShapeDtypeStruct((2,), np.float32, sharding=sharding)
  checkpoints.save_params(tmp_path / "saved", {"trained": {"a": jnp.ones(2)}})
  with pytest.raises(TornCheckpointsError, match="lacks trained/b"):
    checkpoints.restore_part(tmp_path / "saved", {"trained": {"a": like, "b": like}}, "none")
  tree = checkpoints.restore_part(tmp_path / "saved", {"trained": {"a": like}}, "none")
  np.testing.assert_array_equal(tree["trained"]["a"], 1)
