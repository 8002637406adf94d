"""GGUF files: the same network, tokenizer and export as of a folder; what is refused."""

import functools
import json
import random
import sys
import tempfile

import gguf as library
import gguf_files as files
import numpy as np
import pytest
from gguf_files import TYPES
from test_hf_parity import assert_equal_logits, assert_same, forward, inputs

from experiments.families import checkpoints as hf
from jaxrl_llm.models import CheckpointError, load_pretrained, save_pretrained
from jaxrl_llm.models.hf import gguf, import_weights, network_config, stored_files
from jaxrl_llm.tasks.tokenizer import load_tokenizer, stop_ids

FAMILIES = ("llama", "llama_biases", "qwen2_tied", "qwen2_untied", "qwen2_yarn", "qwen3_tied",
            "qwen3_untied")
QUANTISED = (TYPES.F16, TYPES.BF16, TYPES.Q8_0, TYPES.Q5_1, TYPES.Q4_0, TYPES.Q4_1)


@functools.cache
def network(family):
  """A network of transformers with random weights, in memory alone."""
  with tempfile.TemporaryDirectory() as folder:
    return hf.make(family, folder).network


def write(path, family, kind=TYPES.F32, tokens=None, **how):
  """A file of a family, without a tokenizer unless `tokens` adds one."""
  steps = [functools.partial(files.add_network, network=network(family), kind=kind, **how)]
  return files.write(path, network(family).config.model_type, *steps, *([tokens] if tokens else []))


def refused(path, *parts):
  with pytest.raises(CheckpointError) as error:
    load_pretrained(path)
  message = str(error.value)
  assert "\n" not in message and "Fix: " in message
  for part in parts:
    assert part in message, message


@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family, tmp_path):
  model, params, report = load_pretrained(write(tmp_path / "a.gguf", family))
  theirs = hf.logits(network(family), inputs())
  assert_equal_logits(forward(model)(params), theirs)
  assert report.model_type == network(family).config.model_type and not report.ignored
  if family.startswith("llama"):  # rows of q and k as in transformers: wrong in such a file
    wrong, params, _ = load_pretrained(write(tmp_path / "b.gguf", family, permute=False))
    with pytest.raises(AssertionError):
      assert_equal_logits(forward(wrong)(params), theirs)


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantised_network(kind, tmp_path):
  """Equal to transformers' network with each weight rounded as the file rounds it."""
  import copy

  import torch

  rounded = copy.deepcopy(network("llama"))
  with torch.no_grad():
    for parameter in rounded.state_dict().values():
      values = parameter.numpy()
      stored = files.stored_type(values, kind)
      data = library.quants.quantize(values, stored)
      parameter.copy_(torch.tensor(library.quants.dequantize(data, stored)))
  model, params, report = load_pretrained(write(tmp_path / "a.gguf", "llama", kind))
  assert_equal_logits(forward(model)(params), hf.logits(rounded, inputs()))
  dtype = {"F16": "float16", "BF16": "bfloat16"}.get(kind.name, "float32")
  assert {t.dtype for t in report.tensors} == {"float32", dtype}
  with pytest.raises(AssertionError):  # the rounding is seen
    assert_equal_logits(forward(model)(params), hf.logits(network("llama"), inputs()))


READ_KINDS = [kind for kind in TYPES if kind in library.quants._type_traits]


@pytest.mark.parametrize("kind", READ_KINDS, ids=lambda kind: kind.name)
def test_every_type_by_slices(kind, tmp_path):
  """Rows and columns of permuted and plain tensors, of each type that the package reads."""
  block, size = library.GGML_QUANT_SIZES[kind]
  bytes_ = np.random.default_rng(0).integers(0, 256, (16, 256 // block * size), np.uint8)

  def tensors(writer):
    writer.add_head_count(2)
    for part in ("attn_q", "attn_v"):
      writer.add_tensor(f"blk.0.{part}.weight", bytes_, raw_dtype=kind)

  files.write(tmp_path / "a.gguf", "llama", tensors)
  with np.errstate(all="ignore"):
    values = library.quants.dequantize(bytes_, kind)
    weights = gguf.Weights(tmp_path)
    for name, expected in (("v", values), ("q", files_unpermuted(values, 2))):
      for cut in ((slice(None), slice(None)), (slice(3, 9), slice(None)),
                  (slice(8, 16), slice(5, 70))):
        read = weights.read(f"model.layers.0.self_attn.{name}_proj.weight", cut)
        np.testing.assert_array_equal(read.astype(np.float32), expected[cut])


def files_unpermuted(values, heads):
  order = np.argsort(files.permuted(np.arange(len(values)), heads))
  return values[order]


TOKENIZERS = {
    "llama-bpe": ("llama", functools.partial(files.add_byte_level, pre="llama-bpe", bos=True)),
    "smollm": ("llama", functools.partial(files.add_byte_level, pre="smollm")),
    "default": ("llama", functools.partial(files.add_byte_level, pre="default")),
    "qwen2": ("qwen2", functools.partial(files.add_byte_level, pre="qwen2")),
    "sentencepiece": ("llama", files.add_sentencepiece),
}


def tokenizer_file(path, arch, tokens):
  """A file with a tokenizer and no blocks, which is enough for its folder."""

  def network_of(writer):
    count = len(tokens(writer))
    for add in (writer.add_block_count, writer.add_head_count, writer.add_head_count_kv):
      add(1)
    for add in (writer.add_embedding_length, writer.add_feed_forward_length,
                writer.add_context_length):
      add(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    writer.add_tensor("token_embd.weight", np.zeros((count, 8), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))

  return files.write(path, arch, network_of)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokenizer_is_transformers_own(kind, tmp_path):
  from transformers import AutoTokenizer

  hf.quiet()
  tokenizer_file(tmp_path / "a.gguf", *TOKENIZERS[kind])
  theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf")
  ours = load_tokenizer(import_weights.local_directory(tmp_path / "a.gguf"))
  assert ours.get_vocab() == theirs.get_vocab()
  rng, differing = random.Random(0), 0
  letters = "the cat sat onm 0123456789 'll\n\t.é漢" + ("" if kind == "sentencepiece" else "A")
  for _ in range(500):
    text = "".join(rng.choice(letters) for _ in range(30))
    text += rng.choice(["", "<|endoftext|>", "<think>"])
    if kind == "smollm":
      text = text.replace("  ", "")  # see test_digits_after_spaces
    a, b = ours(text)["input_ids"], theirs(text)["input_ids"]
    assert a == b, text
    assert ours.decode(a) == theirs.decode(b)
    differing += text != ours.decode(a)
  assert ours.eos_token_id == theirs.eos_token_id and ours.bos_token_id == theirs.bos_token_id
  if kind != "sentencepiece":
    messages = [{"role": "user", "content": "the cat"}]
    prompt = ours.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == "the cat>"
    assert stop_ids(ours) == (0, 1), "end of sequence and end of turn"


def test_digits_after_spaces(tmp_path):
  """SmolLM2's tokenizer cuts digits one by one before all else, also after several spaces."""
  tokenizer_file(tmp_path / "a.gguf", *TOKENIZERS["smollm"])
  tokenizer = load_tokenizer(import_weights.local_directory(tmp_path))
  assert tokenizer.tokenize("a  17") == ["a", *tokenizer.tokenize("  "), "1", "7"]


def test_export_is_an_ordinary_folder(tmp_path, monkeypatch):
  """transformers reads it: same logits, same ids; and we read back the same bits."""
  from transformers import AutoTokenizer

  tokens = functools.partial(files.add_byte_level, pre="llama-bpe", bos=True)
  monkeypatch.setitem(hf.SHARED, "vocab_size", 310)  # some more rows than tokens
  llama = hf.make("llama", tmp_path / "made").network
  source = files.write(tmp_path / "a.gguf", "llama", functools.partial(
      files.add_network, network=llama, kind=TYPES.Q8_0), tokens)
  model, params, _ = load_pretrained(source)
  tokenizer = load_tokenizer(import_weights.local_directory(source))
  save_pretrained(tmp_path / "out", model, params, tokenizer=tokenizer)
  assert_equal_logits(forward(model)(params), hf.logits(hf.reload(tmp_path / "out"), inputs()))
  read = AutoTokenizer.from_pretrained(tmp_path / "out")
  text = "We'll see 1234567 of  them<|endoftext|>"
  assert read(text)["input_ids"] == tokenizer(text)["input_ids"]
  assert read.chat_template == tokenizer.chat_template
  assert_same(load_pretrained(tmp_path / "out")[1], params)
  config = json.loads((tmp_path / "out/config.json").read_text())
  assert config["max_position_embeddings"] == 256 and config["rms_norm_eps"] == 1e-6


def test_a_folder_and_its_inputs(tmp_path):
  """A folder with one file is that file; a run records the file, and nothing made of it."""
  write(tmp_path / "a.gguf", "qwen3_tied")
  read = stored_files.checkpoint_files
  assert read(str(tmp_path)) == read(str(tmp_path / "a.gguf")) == {"a.gguf": tmp_path / "a.gguf"}
  place = import_weights.local_directory(tmp_path)
  assert import_weights.base_directory(place) == place
  assert network_config.read_config(place).qk_norm
  write(tmp_path / "b.gguf", "qwen2_tied")
  refused(tmp_path, "several GGUF models: a.gguf, b.gguf")


def test_split_files(tmp_path):
  """All parts are read, whichever is named; without one of them the file is refused by name."""
  expected = load_pretrained(write(tmp_path / "whole.gguf", "qwen3_untied"))[1]
  (tmp_path / "parts").mkdir()
  files.write(tmp_path / "parts/m.gguf", "qwen3",
              functools.partial(files.add_network, network=network("qwen3_untied")),
              split_max_tensors=10)
  parts = sorted((tmp_path / "parts").iterdir())
  assert len(parts) == 3
  for path in (tmp_path / "parts", parts[1]):
    assert_same(load_pretrained(path)[1], expected)
  parts[0].rename(tmp_path / "parts/n.gguf")
  refused(tmp_path / "parts/n.gguf", "split.count = 3", "1 parts with 10")
  (tmp_path / "parts/n.gguf").rename(parts[0])
  parts[2].unlink()
  refused(parts[0], "one of 3 parts", parts[2].name)


def metadata(change):
  """A step that changes the metadata which the steps before it wrote."""
  return lambda writer: writer.kv_data[0].update(change)


def value(x):
  kinds = {int: library.GGUFValueType.UINT32, float: library.GGUFValueType.FLOAT32,
           str: library.GGUFValueType.STRING}
  from gguf.gguf_writer import GGUFValue
  return GGUFValue(value=x, type=kinds[type(x)])


@pytest.mark.parametrize(("change", "parts"), [
    ({"general.architecture": "gemma3"}, ("general.architecture = 'gemma3'", "llama, qwen2")),
    ({"general.type": "adapter"}, ("general.type = 'adapter'",)),
    ({"qwen3.expert_count": 4}, ("qwen3.expert_count = 4",)),
    ({"qwen3.rope.dimension_count": 8}, ("heads of 16", "turn 8")),
    ({"qwen3.rope.scaling.type": "longrope"}, ("rope.scaling.type = 'longrope'", "yarn")),
    ({"tokenizer.ggml.model": "t5"}, ("tokenizer.ggml.model = 't5'", "'gpt2'")),
    ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "tekken"}, ("'tekken'", "smollm")),
    ({"tokenizer.ggml.model": "gpt2"}, ("make no tokenizer", "merges")),
], ids=lambda x: next(reversed(x)) if isinstance(x, dict) else "")
def test_refused_metadata(change, parts, tmp_path):
  write(tmp_path / "a.gguf", "qwen3_tied",
        tokens=metadata({key: value(x) for key, x in change.items()}))
  refused(tmp_path / "a.gguf", "a.gguf", *parts)


def test_refused_files(tmp_path, monkeypatch):
  path = write(tmp_path / "a.gguf", "llama", TYPES.Q8_0)
  content = path.read_bytes()
  for size in (0, 3, 30, 400, len(content) // 2, len(content) - 40):
    path.write_bytes(content[:size])
    refused(path, f"a.gguf ({size} bytes)", "truncated")
  path.write_bytes(b"PK" + content[2:])
  refused(path, "no GGUF")
  # a type that the package knows and cannot read, and one that it does not know
  refused(tmp_path / "none.gguf", "none.gguf is not a directory", "GGUF file")
  for number, parts in ((TYPES.F64, ("F64", "dequantised")), (77, ("77", "QuantizationType"))):
    write(path, "llama", TYPES.F32)
    changed = path.read_bytes()
    info = changed.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
    path.write_bytes(changed[:info] + np.uint32(number).tobytes() + changed[info + 4:])
    refused(path, *parts)
  monkeypatch.setitem(sys.modules, "gguf", None)
  write_again = tmp_path / "c.gguf"
  write_again.write_bytes(content)
  refused(write_again, "pip install 'jaxrl_llm[gguf]'")


def test_factors_of_no_known_rule(tmp_path):
  def factors(writer):
    writer.tensors[0]["rope_freqs.weight"].tensor[:] = [1, 3, 2, 8]

  write(tmp_path / "a.gguf", "llama", tokens=factors)
  refused(tmp_path / "a.gguf", "rope_freqs.weight", "Llama 3's rule")


def test_tensors_that_are_not_there(tmp_path):
  def without(writer):
    del writer.tensors[0]["blk.1.ffn_up.weight"]

  write(tmp_path / "a.gguf", "llama", tokens=without)
  with pytest.raises(CheckpointError, match=r"missing: model\.layers\.1\.mlp\.up_proj\.weight"):
    load_pretrained(tmp_path / "a.gguf")
