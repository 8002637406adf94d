"""Adapters that PEFT wrote are read and added to their base as PEFT does."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from experiments.families import checkpoints as hf_checkpoints
from jaxrl_llm.models import CheckpointError, load_pretrained
from jaxrl_llm.models.hf import import_adapters
from jaxrl_llm.models.hf.import_adapters import CONFIG, WEIGHTS
from jaxrl_llm.models.hf.import_weights import base_directory

IDS = np.random.default_rng(0).integers(0, hf_checkpoints.VOCAB, (2, 9))


def with_adapter(folder, **options):
  """Writes a base and an adapter of PEFT, and returns (folder, logits that PEFT computes)."""
  import torch
  from peft import LoraConfig, get_peft_model

  checkpoint = hf_checkpoints.make("qwen3_untied", folder / "base")
  checkpoint.network.name_or_path = "base"
  network = get_peft_model(checkpoint.network, LoraConfig(task_type="CAUSAL_LM", **options)).eval()
  with torch.no_grad():
    for name, p in network.named_parameters():
      if "lora_" in name:
        p.add_(0.2 * torch.randn_like(p))
  theirs = hf_checkpoints.logits(network, IDS)
  network.save_pretrained(folder / "adapter")
  return folder, theirs


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
  """Scaled by alpha / sqrt(r)."""
  return with_adapter(tmp_path_factory.mktemp("peft"), r=3, lora_alpha=12, use_rslora=True,
                      target_modules=["q_proj", "o_proj", "down_proj", "lm_head"])


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params):
  positions = jnp.broadcast_to(jnp.arange(IDS.shape[1]), IDS.shape)
  hidden = model.hidden(params, jnp.asarray(IDS), positions, jnp.ones_like(positions))[0]
  return hidden @ model.head(params)


@pytest.fixture
def copy(adapter, tmp_path):
  shutil.copytree(adapter[0], tmp_path / "copy")
  return tmp_path / "copy" / "adapter"


def edit(folder, **changes):
  config = json.loads((folder / CONFIG).read_text()) | changes
  (folder / CONFIG).write_text(json.dumps(config))


def test_the_base_with_the_adapter_computes_what_peft_does(adapter):
  folder, theirs = adapter
  model, params, report = load_pretrained(folder / "adapter", scan_layers=True)
  assert report.directory == model.origin == str(folder / "base")
  np.testing.assert_allclose(logits(model, params), theirs, atol=2e-4 * np.abs(theirs).max())
  base = load_pretrained(folder / "base", scan_layers=True)[1]
  assert np.abs(np.asarray(logits(model, base)) - theirs).max() > 0.1
  same = jax.tree.map(lambda a, b: bool((a == b).all()), base, params)
  assert same["blocks"]["attention"]["key"] and not same["blocks"]["attention"]["query"]


def test_another_scale_is_seen(adapter, copy):
  edit(copy, use_rslora=False)
  model, params, _ = load_pretrained(copy)
  assert np.abs(logits(model, params) - adapter[1]).max() > 1e-2


def test_the_base_is_found_by_its_path_beside_or_in_the_folder(copy, monkeypatch, tmp_path):
  base = copy.parent / "base"
  for named in (str(base), "base", "../base", "org/base", str(tmp_path / "gone" / "base")):
    edit(copy, base_model_name_or_path=named)
    assert base_directory(copy).resolve() == base
  shutil.rmtree(base)
  with pytest.raises(CheckpointError, match=r"its base .* was not found .* Fix: ") as error:
    load_pretrained(copy)
  assert "\n" not in str(error.value)
  edit(copy, base_model_name_or_path=None)
  with pytest.raises(CheckpointError, match="names no base"):
    load_pretrained(copy)


@pytest.mark.parametrize("changes, text", [
    ({"use_dora": True}, "use_dora = True"),
    ({"bias": "all", "modules_to_save": ["norm"]}, r"bias = 'all', modules_to_save = \['norm'\]"),
    ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
    ({"peft_type": None}, "peft_type = None: only 'LORA'"),
    ({"lora_alpha": None}, "lora_alpha = None"),
    ({"lora_alpha": float("nan")}, "lora_alpha = nan"),
    ({"r": 0}, "r = 0"),
    ({"r": 4}, r"A has 3 rows, but adapter_config.json names the rank \[4\]"),
    *(({"init_lora_weights": name}, f"init_lora_weights = '{name}'")
      for name in ("pissa_niter_4", "PiSSA", "corda", "loftq", "lora_ga", "mica", "new")),
    ({"init_lora_weights": 1}, "init_lora_weights = 1"),
    ({"eva_config": {"rho": 2.0}}, "eva_config = {"),
    ({"corda_config": {}, "lora_ga_config": {"x": 1}}, "^[^,]*: lora_ga_config = {'x': 1}: only"),
    ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern = {"),
    ({"trainable_token_indices": [3]}, r"trainable_token_indices = \[3\]"),
    ({"target_parameters": ["experts.up"]}, "target_parameters"),
    ({"task_type": "SEQ_CLS"}, "task_type = 'SEQ_CLS'"),
    ({"use_rslora": 1}, "use_rslora = 1"),
    ({"a_variant_of_tomorrow": 0.5}, "a_variant_of_tomorrow = 0.5"),
])
def test_other_adapters_are_refused(changes, text, copy):
  edit(copy, **changes)
  with pytest.raises(CheckpointError, match=text):
    load_pretrained(copy)


@pytest.mark.parametrize("changes", [
    {"init_lora_weights": "gaussian"}, {"init_lora_weights": False},
    {"init_lora_weights": "orthogonal"}, {"init_lora_weights": "eva", "eva_config": {"rho": 1.0}},
    {"a_variant_of_tomorrow": None, "another": {}, "third": False, "lora_dropout": 0.1,
     "qalora_group_size": 32, "auto_mapping": {"base_model_class": "X"}, "revision": "abc"},
    {"r": 8, "rank_pattern": {"q_proj": 3}},
])
def test_what_leaves_the_base_alone_is_read(changes, copy, adapter):
  edit(copy, **changes)
  model, params, _ = load_pretrained(copy)
  theirs = adapter[1]
  np.testing.assert_allclose(logits(model, params), theirs, atol=2e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_an_initialisation_that_changes_the_base_would_compute_something_else(init, tmp_path,
                                                                              monkeypatch):
  """What the refusal prevents: without it the logits are wrong by their own size."""
  _, theirs = with_adapter(tmp_path, r=4, lora_alpha=8, init_lora_weights=init,
                           target_modules=["q_proj", "o_proj", "down_proj"])
  with pytest.raises(CheckpointError, match=f"init_lora_weights = '{init}'"):
    load_pretrained(tmp_path / "adapter")
  monkeypatch.setitem(import_adapters.PLAIN, "init_lora_weights", (init,))
  model, params, _ = load_pretrained(tmp_path / "adapter")
  assert np.abs(logits(model, params) - theirs).max() > 0.3 * np.abs(theirs).max()


def test_a_whole_weight_beside_the_adapter_must_be_the_base_s(copy):
  tensors = load_file(copy / WEIGHTS)
  name = "base_model.model.lm_head.base_layer.weight"
  save_file(tensors | {name: tensors[name] + np.float32(1e-3)}, copy / WEIGHTS)
  with pytest.raises(CheckpointError, match="lm_head: the weight that is stored whole is not"):
    load_pretrained(copy)


def test_matrices_that_do_not_fit_are_listed(copy):
  tensors = load_file(copy / WEIGHTS)
  first, second = (f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_" for i in (0, 1))
  del tensors[f"{first}A.weight"]
  tensors[f"{second}B.weight"] = tensors[f"{second}B.weight"][:5].copy()
  tensors["base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight"] = np.ones((3, 32),
                                                                                  np.float32)
  save_file(tensors, copy / WEIGHTS)
  with pytest.raises(CheckpointError) as error:
    load_pretrained(copy)
  for text in ("layers.0.self_attn.q_proj: only lora_B", "layers.1.self_attn.q_proj: A is [3, 32]",
               "layers.9.self_attn.q_proj: the base has no such weight"):
    assert text in str(error.value)
  (copy / WEIGHTS).write_bytes(b"torn")
  with pytest.raises(CheckpointError, match="truncated or damaged"):
    load_pretrained(copy)
