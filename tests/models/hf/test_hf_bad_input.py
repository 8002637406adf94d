"""Bad checkpoints are refused: the error names file or tensor, and lists everything wrong."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from experiments.families import checkpoints as hf
from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig
from jaxrl_llm.models import CheckpointError, Model, load_pretrained, save_pretrained
from jaxrl_llm.models.hf import safetensors_files
from jaxrl_llm.models.hf.network_config import read_config


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
  return hf.make("qwen2_tied", tmp_path_factory.mktemp("sharded"), max_shard_size="20KB").directory


@pytest.fixture(scope="module")
def single(tmp_path_factory):
  return hf.make("qwen3_untied", tmp_path_factory.mktemp("single")).directory


@pytest.fixture
def copy(tmp_path):
  return lambda directory: shutil.copytree(directory, tmp_path / "copy")


def edit(directory, **changes):
  """Change keys of config.json; None removes one."""
  config = json.loads((directory / "config.json").read_text()) | changes
  kept = {key: value for key, value in config.items() if value is not None}
  (directory / "config.json").write_text(json.dumps(kept))


def retensor(directory, change):
  """Stores what `change` makes of the tensors."""
  tensors = change(load_file(directory / "model.safetensors"))
  save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("wrapped", [
    "module.{}", "_orig_mod.{}", "module._orig_mod.{}", "_orig_mod.module.{}",
    "_fsdp_wrapped_module.{}"])
def test_names_of_wrappers_are_read(single, copy, wrapped):
  directory = copy(single)
  retensor(directory, lambda tensors: {
      wrapped.format(name).replace(".mlp.", "._checkpoint_wrapped_module.mlp."): tensor
      for name, tensor in tensors.items()})
  expected, params = (load_pretrained(path)[1] for path in (single, directory))
  jax.tree.map(np.testing.assert_array_equal, expected, params)


def test_names_as_they_are_would_be_refused(single, copy, monkeypatch):
  """What the test above rejects."""
  monkeypatch.setattr(safetensors_files, "WRAPPERS", re.compile("(?!)"))
  with pytest.raises(CheckpointError, match="module"):
    test_names_of_wrappers_are_read(single, copy, "module.{}")


def refused(directory, *parts, **more):
  with pytest.raises(CheckpointError) as error:
    load_pretrained(directory, **more)
  for part in parts:
    assert part in str(error.value), str(error.value)


@pytest.mark.parametrize(("changes", "parts"), [
    ({"model_type": "gpt2"}, ("model_type = 'gpt2'", "llama, qwen2, qwen3, qwen3_moe, mistral")),
    ({"model_type": None}, ("model_type = None", "llama, qwen2, qwen3, qwen3_moe, mistral")),
    ({"architectures": ["Qwen3ForSequenceClassification"]},
     ("Qwen3ForSequenceClassification", "Qwen3ForCausalLM")),
    ({"hidden_act": "gelu", "attention_dropout": 0.5},
     ("hidden_act = 'gelu'", "attention_dropout = 0.5")),
    ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": None},
     ("sliding-window attention in use",)),
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
     ("rope_type = 'dynamic'", "llama3, yarn")),
    ({"quantization_config": {"quant_method": "fp8"}}, ("quantization_config",)),
    ({"hidden_size": -16}, ("width = -16; 1 or more",)),
    ({"num_attention_heads": 0}, ("config.json",)),
    ({"rms_norm_eps": float("nan")}, ("norm_epsilon = nan",)),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": "big"}},
     ("config.json is not a valid qwen3 config", "'big'")),
    ({"hidden_size": "wide"}, ("config.json is not a valid qwen3 config", "hidden_size")),
], ids=lambda x: next(iter(x)) if isinstance(x, dict) else "")
def test_configs(single, copy, changes, parts):
  directory = copy(single)
  edit(directory, **changes)
  refused(directory, "config.json", *parts)


@pytest.mark.parametrize("changes", [
    {"quantization_config": None},  # null is absent
    {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2,  # of no layer
     "layer_types": None}])
def test_what_changes_nothing_is_read(single, copy, changes):
  directory = copy(single)
  config = json.loads((directory / "config.json").read_text())
  (directory / "config.json").write_text(json.dumps(config | changes))
  assert read_config(directory) == read_config(single)


def test_older_configs(copy, tmp_path):
  """rope_theta and rope_scaling, as transformers 4 wrote them."""
  directory = hf.make("llama", tmp_path / "llama").directory
  expected = read_config(directory)
  assert expected.rope_scaling.name == "llama3" and expected.rope_scaling.original_length == 32
  edit(directory, rope_parameters=None, rope_theta=1e4,
       rope_scaling={k: v for k, v in hf.LLAMA3.items() if k != "rope_theta"})
  assert read_config(directory) == expected
  edit(directory, rope_scaling={"type": "linear", "factor": 2.0})
  assert read_config(directory).rope_scaling.name == "linear"


def test_everything_wrong_is_listed_at_once(single, copy):
  directory = copy(single)

  def change(tensors):
    del tensors["model.norm.weight"]
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-3].copy()
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(64, np.float32)
    up = "model.layers.1.mlp.up_proj.weight"
    tensors[up] = tensors[up].astype(np.int8)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)  # harmless
    return tensors

  retensor(directory, change)
  refused(
      directory, "(4 tensors)", "missing: model.norm.weight (for final_norm/scale, shape [32])",
      "wrong shape: lm_head.weight in model.safetensors is [45, 32], "
      "but config.json makes it [48, 32]",
      "left over: model.layers.0.self_attn.q_proj.bias in model.safetensors",
      "wrong dtype: model.layers.1.mlp.up_proj.weight in model.safetensors is I8")


def test_tied_head_that_is_stored_too(copy, tmp_path):
  directory = hf.make("qwen3_tied", tmp_path / "tied").directory

  def store(scale):
    retensor(directory, lambda tensors: tensors | {
        "lm_head.weight": tensors["model.embed_tokens.weight"] * np.float32(scale)})

  store(1)
  assert load_pretrained(directory)[2].ignored == ("lm_head.weight",)
  store(2)
  refused(directory, "lm_head.weight differs from the embedding", "tie_word_embeddings")
  edit(directory, tie_word_embeddings=False)
  assert load_pretrained(directory)[0].config.tie_head is False


def test_files(sharded, single, copy, tmp_path):
  directory = copy(sharded)
  index = json.loads((directory / "model.safetensors.index.json").read_text())
  first, second = sorted(set(index["weight_map"].values()))[:2]
  content = (directory / first).read_bytes()
  (directory / first).write_bytes(content[:-100])
  refused(directory, first, f"({len(content) - 100} bytes)", "truncated")
  (directory / first).write_bytes(b"")
  refused(directory, first, "truncated")
  (directory / first).unlink()
  refused(directory, first, "not there")
  shutil.copy(directory / second, directory / first)
  refused(directory, second, first, "is in")
  (directory / first).write_bytes(content)
  index["weight_map"]["model.more.weight"] = second
  (directory / "model.safetensors.index.json").write_text(json.dumps(index))
  refused(directory, "model.more.weight", second)
  (directory / "model.safetensors.index.json").write_text("{")
  refused(directory, "model.safetensors.index.json", "not an index")
  (directory / "model.safetensors.index.json").unlink()
  refused(directory, "neither model.safetensors nor model.safetensors.index.json")
  (directory / "config.json").write_text("{")
  refused(directory, "config.json is not JSON")
  refused(tmp_path, "config.json is not there")
  refused(tmp_path / "absent", "absent is not a directory")


def test_hub_names(monkeypatch):
  import huggingface_hub

  def offline(*_, **__):
    raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

  monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
  refused("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "no network")


def test_vocabulary_beyond_the_head(single, copy):
  from tokenizers import Tokenizer, models

  directory = copy(single)
  for size, fits in ((hf.VOCAB, True), (hf.VOCAB + 1, False)):
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(size)}, unk_token="t0"))
    tokenizer.save(str(directory / "tokenizer.json"))
    if fits:
      load_pretrained(directory)
    else:
      refused(directory, "tokenizer.json", "'t48' has id 48", "vocab_size = 48")


def test_overrides(single):
  refused(single, "overrides = ['width']", "value_head, value_bounded, scan_layers, remat",
          width=64)
  refused(single, "dtype = 'int8'", "float32, float16, bfloat16", dtype="int8")
  model, params, report = load_pretrained(single, value_head=True, remat="full",
                                          compute_dtype="bfloat16")
  assert (model.config.remat, model.config.compute_dtype) == ("full", "bfloat16")
  assert report.initialised == ("value_head",)
  np.testing.assert_array_equal(params["value_head"], np.zeros(32))


def test_exports(single, tmp_path):
  model, params, _ = load_pretrained(single, value_head=True)
  with pytest.raises(CheckpointError, match=r"already holds config\.json, model\.safetensors"):
    save_pretrained(single, model, params)
  wrong = {**params, "embedding": params["embedding"][:3]}
  del wrong["final_norm"]
  message = r"missing: final_norm/scale \[32\]\n.*wrong shape: embedding is \[3, 32\]"
  with pytest.raises(CheckpointError, match=message):
    save_pretrained(tmp_path / "wrong", model, wrong)
  with pytest.raises(CheckpointError, match="int8"):
    save_pretrained(tmp_path / "wrong", model, params, dtype="int8")
  odd = Model(model.config.__class__(qkv_bias=True, qk_norm=True))
  with pytest.raises(CheckpointError, match="qkv_bias = True, out_bias = False, qk_norm = True"):
    save_pretrained(tmp_path / "wrong", odd, params)
  assert not (tmp_path / "wrong").exists()


def test_what_an_export_carries_over(single, copy, tmp_path):
  """Generation defaults and unknown keys of the source, tokenizer, value head."""
  source = copy(single)
  edit(source, eos_token_id=7, max_position_embeddings=99, note="kept")
  (source / "generation_config.json").write_text('{"top_k": 20}')
  mesh = parallel.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
  model, params, _ = load_pretrained(source, value_head=True, mesh=mesh)
  params["value_head"] = jax.device_put(jnp.arange(32.0), params["value_head"].sharding)

  class Tokens:
    pad_token_id, eos_token_id = 3, 5

    def save_pretrained(self, directory):
      with open(f"{directory}/tokenizer_config.json", "w") as file:
        file.write("{}")

  save_pretrained(tmp_path / "out", model, params, tokenizer=Tokens(), dtype="bfloat16")
  config = json.loads((tmp_path / "out" / "config.json").read_text())
  expected = {"eos_token_id": 7, "pad_token_id": 3, "max_position_embeddings": 99, "note": "kept",
              "torch_dtype": "bfloat16"}
  assert config == config | expected
  assert {p.name for p in (tmp_path / "out").iterdir()} == {
      "config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json",
      "value_head.npy"
  }
  again, back, report = load_pretrained(tmp_path / "out", value_head=True)
  np.testing.assert_array_equal(back["value_head"], np.arange(32.0))
  assert again == Model(model.config) and report.initialised == ()
  assert hf.reload(tmp_path / "out").config.note == "kept"
