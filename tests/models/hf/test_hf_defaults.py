"""What a directory says beside its weights: positions, sampling, EOS, shards, one dtype."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from experiments.families import checkpoints as hf
from jaxrl_llm.models import CheckpointError, load_pretrained, save_pretrained
from jaxrl_llm.models.hf.recommended_sampling import differing_sampling, position_limit
from jaxrl_llm.models.hf.safetensors_files import INDEX, Weights
from jaxrl_llm.tasks.tokenizer import byte_tokenizer, stop_ids


def write(folder, name, content):
  (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize("rope, limit", [
    ({}, 100),
    ({"rope_scaling": None}, 100),
    ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 100),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 400),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0,
                          "original_max_position_embeddings": 50}}, 200),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 1.5,
                       "original_max_position_embeddings": 50}}, 100),
])
def test_positions(rope, limit, tmp_path):
  write(tmp_path, "config.json", {"max_position_embeddings": 100} | rope)
  assert position_limit(tmp_path) == limit


def test_sampling_defaults_that_differ(tmp_path):
  assert differing_sampling(tmp_path, {"temperature": 1.0}) == []
  write(tmp_path, "generation_config.json",
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": True})
  assert differing_sampling(tmp_path, {"temperature": 0.6, "top_p": 0.9}) == [
      "top_k = 20 (here 0)", "top_p = 0.95 (here 0.9)"]
  write(tmp_path, "generation_config.json", {"do_sample": False})
  assert differing_sampling(tmp_path, {"temperature": 1.0}) == ["temperature = 0.0 (here 1.0)"]


def test_eos_of_the_config_where_no_generation_config_is(tmp_path):
  tokenizer = byte_tokenizer()
  for named, ids in (([1, 7, 9], (1, 7, 9)), (7, (1, 7)), (None, (1,))):
    write(tmp_path, "config.json", {"eos_token_id": named})
    assert stop_ids(tokenizer, tmp_path) == ids
  write(tmp_path, "config.json", {"eos_token_id": [7]})
  write(tmp_path, "generation_config.json", {"eos_token_id": 8})
  assert stop_ids(tokenizer, tmp_path) == (1, 8)


@pytest.mark.parametrize("file", ["../../x", "/etc/passwd", "../x.safetensors", None, 3, ["a"],
                                  {"a": "b"}, "a/b.safetensors", "..\\b.safetensors", "x.bin", ""])
def test_an_index_names_files_beside_it(file, tmp_path):
  write(tmp_path, INDEX, {"weight_map": {"w": file}})
  with pytest.raises(CheckpointError) as error:
    Weights(tmp_path)
  assert repr(file) in str(error.value) and "'w'" in str(error.value)


@pytest.mark.parametrize("content", [[], {"weight_map": []}, {"weight_map": None}, None, 3])
def test_an_index_is_an_object(content, tmp_path):
  write(tmp_path, INDEX, content)
  with pytest.raises(CheckpointError, match="is not an index"):
    Weights(tmp_path)


def test_an_export_has_one_dtype_that_holds_everything(tmp_path):
  """A weight into which an adapter was merged is f32; the rest is stored like it."""
  hf.make("qwen3_untied", tmp_path / "base", dtype="bfloat16")
  model, params, _ = load_pretrained(tmp_path / "base")
  merged = params | {"head": params["head"].astype(jnp.float32) + 1e-5}
  assert {x.dtype.name for x in jax.tree.leaves(merged)} == {"float32", "bfloat16"}
  for dtype, stored in ((None, "F32"), ("bfloat16", "BF16")):
    out = tmp_path / stored
    save_pretrained(out, model, merged, dtype=dtype)
    with safe_open(out / "model.safetensors", framework="np") as file:
      assert {file.get_slice(name).get_dtype() for name in file.keys()} == {stored}
  back = load_pretrained(tmp_path / "F32")[1]
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, jnp.asarray(y, jnp.float32)), back,
               merged)
  assert json.loads((tmp_path / "F32" / "config.json").read_text())["dtype"] == "float32"


def test_a_value_head_keeps_its_f32_beside_bf16_weights(tmp_path):
  hf.make("qwen2_tied", tmp_path / "base", dtype="bfloat16")
  model, params, _ = load_pretrained(tmp_path / "base", value_head=True)
  params["value_head"] = jnp.linspace(0.1, 0.2, 32)
  save_pretrained(tmp_path / "out", model, params)
  back = load_pretrained(tmp_path / "out", value_head=True)[1]
  np.testing.assert_array_equal(back["value_head"], params["value_head"])
  assert back["embedding"].dtype == jnp.bfloat16
