"""Checkpoints of Hugging Face that are damaged or of another kind: config, tokenizer, weights,
adapters.
"""

import json
import shutil
import struct

from campaign import Case, main

WEIGHTS = "model.safetensors"


def start(prepare, *texts: str, values: dict[str, str] | None = None, **fields) -> Case:
  """Returns a case of a run from a checkpoint that was changed."""
  return main({"pretrained": "{here}/base"} | (values or {}), *texts, kind="pretrained",
              needs=("base",), prepare=lambda here: prepare(here / "base"), **fields)


def configured(changes: dict, *texts: str, file: str = "config.json", **fields) -> Case:
  """Returns a case of a JSON file in which keys were changed; None: removed."""
  def change(base):
    content = json.loads((base / file).read_text())
    for key, value in changes.items():
      content.pop(key, None) if value is None else content.update({key: value})
    (base / file).write_text(json.dumps(content))

  return start(change, file, *texts, **fields)


def written(name: str, content: str | bytes, *texts: str) -> Case:
  def change(base):
    if (base / name).is_dir():
      shutil.rmtree(base / name)
    (base / name).write_bytes(content if isinstance(content, bytes) else content.encode())

  return start(change, name, *texts)


def header(change, *texts: str) -> Case:
  """Returns a case of weights whose header is changed."""
  def rewrite(base):
    content = (base / WEIGHTS).read_bytes()
    size, = struct.unpack("<Q", content[:8])
    text = change(json.loads(content[8:8 + size]))
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    (base / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size:])

  return start(rewrite, WEIGHTS, *texts)


def entry(**changes):
  """Returns what changes the first tensor's entry in a header."""
  def change(head):
    name = next(name for name in head if name != "__metadata__")
    return head | {name: head[name] | changes}

  return change


def folder(name: str):
  def change(base):
    (base / name).unlink(missing_ok=True)
    (base / name / "x").mkdir(parents=True)

  return change


def adapter(config, weights: bytes = b"", *texts: str) -> Case:
  """Returns a case of an adapter of the checkpoint, with this adapter_config.json."""
  def prepare(here):
    (here / "adapter").mkdir()
    text = config if isinstance(config, str) else json.dumps(
        {"peft_type": "LORA", "base_model_name_or_path": str(here / "base"), "r": 2,
         "lora_alpha": 4, "target_modules": ["q_proj"]} | config)
    (here / "adapter" / "adapter_config.json").write_text(text)
    (here / "adapter" / "adapter_model.safetensors").write_bytes(weights)

  return main({"pretrained": "{here}/adapter"}, "adapter", *texts, kind="pretrained",
              needs=("base",), prepare=prepare)


def nan(base):
  from safetensors import numpy as safetensors

  content = safetensors.load_file(base / WEIGHTS)
  content["model.embed_tokens.weight"] = content["model.embed_tokens.weight"] * float("nan")
  safetensors.save_file(content, base / WEIGHTS)


CASES = {
    "file": main({"pretrained": "{here}/x"}, "pretrained", kind="pretrained", files={"x": "x"}),
    "empty folder": main({"pretrained": "{here}/d"}, "config.json", kind="pretrained",
                         files={"d/.keep": ""}),
    "hub name of three parts": main({"pretrained": "a/b/c"}, "a/b/c", kind="pretrained"),
    "config of bytes": written("config.json", b"\xff\xfe", "JSON"),
    "config without end": written("config.json", '{"a": ' * 50_000),
    "config that is a folder": start(folder("config.json"), "config.json"),
    "kind of a list": configured({"model_type": ["llama"]}, "model_type"),
    "architectures of a text": configured({"architectures": "Qwen3ForCausalLM"}, "architectures"),
    "a billion layers": configured({"num_hidden_layers": 10**9}),
    "more kv heads than heads": configured({"num_key_value_heads": 7}),
    "base of 0": configured({"rope_theta": 0, "rope_parameters": None}, "rope"),
    "stretching of a text": configured({"rope_parameters": "yarn"}),
    "stretching without a factor": configured(
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}),
    "tied and not": configured({"tie_word_embeddings": "maybe"}),
    "weights of PyTorch": start(lambda base: (base / WEIGHTS).rename(base / "pytorch_model.bin"),
                                WEIGHTS),
    "pointer of Git LFS": written(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:0000\nsize 123\n"),
    "weights that are a folder": start(folder(WEIGHTS), WEIGHTS),
    "header of 2^60 bytes": start(lambda base: (base / WEIGHTS).write_bytes(
        struct.pack("<Q", 2**60) + (base / WEIGHTS).read_bytes()[8:]), WEIGHTS),
    "header without end": header(lambda head: b'{"a":' * 20_000),
    "tensor beyond the file": header(entry(data_offsets=[0, 10**12])),
    "tensor of an unknown type": header(entry(dtype="F99")),
    "tensor that is a number": header(lambda head: head | {"x": 3}),
    "weights of not a number": start(nan, "iteration 1"),
    "tokenizer of another model": start(
        lambda base: (base / "tokenizer.json").write_text('{"model": {"type": "Magic"}}'),
        "base", "tokenizer"),
    "tokenizer settings of a list": start(
        lambda base: (base / "tokenizer_config.json").write_text("[]"), "base", "tokenizer"),
    "sampling of a list": written("generation_config.json", "[]"),
    "stop token out of range": start(lambda base: (base / "generation_config.json").write_text(
        '{"eos_token_id": 10000}'), "generation_config.json"),
    "adapter of no JSON": adapter("{"),
    "adapter of another kind": adapter({"peft_type": "PREFIX_TUNING"}, b"", "PREFIX_TUNING"),
    "adapter of rank 0": adapter({"r": 0}),
    "adapter of itself": adapter({"base_model_name_or_path": "."}),
    "adapter of empty weights": adapter({}, b""),
    "adapter of broken targets": adapter({"target_modules": "("}),
}
