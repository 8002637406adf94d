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


def rewritten(path, **changes):
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


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


def damaged(name: str, content: str) -> Case:
  """As `written`, of a tokenizer's file: its reader does not say which of them is at fault."""
  return start(lambda base: (base / name).write_text(content), "base", "tokenizer")


def template(text: str) -> Case:
  """Returns a case of a chat template."""
  return start(lambda base: rewritten(base / "tokenizer_config.json", chat_template=text),
               "task.prompt.style = 'chat'", "base", values={"task.prompt.style": "chat"})


def tensors(change, *texts: str) -> Case:
  """Returns a case of weights in which `change` got the tensors by name."""
  def rewrite(base):
    from safetensors import numpy as safetensors

    content = change(safetensors.load_file(base / WEIGHTS))
    safetensors.save_file(content, base / WEIGHTS)

  return start(rewrite, *texts)


def header(change, *texts: str) -> Case:
  """Returns a case of weights whose header is changed."""
  def rewrite(base):
    content = (base / WEIGHTS).read_bytes()
    size, = struct.unpack("<Q", content[:8])
    text = change(json.loads(content[8:8 + size]))
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    (base / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size:])

  return start(rewrite, WEIGHTS, *texts)


def patched(content: bytes, place: int, *texts: str) -> Case:
  def rewrite(base):
    whole = bytearray((base / WEIGHTS).read_bytes())
    whole[place:place + len(content)] = content
    (base / WEIGHTS).write_bytes(bytes(whole))

  return start(rewrite, WEIGHTS, *texts)


def first(content: dict) -> str:
  return next(name for name in content if name != "__metadata__")


def other_offsets(head):
  head[first(head)]["data_offsets"] = [0, 10**12]
  return head


def other_type(head):
  head[first(head)]["dtype"] = "F99"
  return head


def negative(head):
  head[first(head)]["shape"] = [-1, 3]
  return head


def no_object(head):
  head[first(head)] = 3
  return head


def folder(name: str):
  def change(base):
    (base / name).unlink(missing_ok=True)
    (base / name / "x").mkdir(parents=True)

  return change


def index(content, *texts: str) -> Case:
  """Returns a case of a checkpoint of shards, with this index."""
  def change(base):
    (base / WEIGHTS).rename(base / "model-00001-of-00001.safetensors")
    text = content if isinstance(content, str) else json.dumps(content)
    (base / "model.safetensors.index.json").write_text(text)

  return start(change, "index.json", *texts)


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


def nan(content):
  name = "model.embed_tokens.weight"
  content[name] = content[name] * float("nan")
  return content


def transposed(content):
  return {name: value.T.copy() for name, value in content.items()}


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
    "half a layer": configured({"num_hidden_layers": 1.5}),
    "more kv heads than heads": configured({"num_key_value_heads": 7}),
    "width of 10^30": configured({"hidden_size": 10**30}),
    "vocabulary below the tokenizer": start(
        lambda base: rewritten(base / "config.json", vocab_size=3), "vocab_size = 3"),
    "epsilon of a text": configured({"rms_norm_eps": "small"}),
    "base of 0": configured({"rope_theta": 0, "rope_parameters": None}, "rope"),
    "stretching of a text": configured({"rope_parameters": "yarn"}),
    "stretching without a factor": configured(
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}),
    "tied and not": configured({"tie_word_embeddings": "maybe"}),
    "weights of PyTorch": start(lambda base: (base / WEIGHTS).rename(base / "pytorch_model.bin"),
                                WEIGHTS),
    "weights that are a web page": written(WEIGHTS, "<!DOCTYPE html><html></html>" * 9),
    "pointer of Git LFS": written(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:0000\nsize 123\n"),
    "weights that are a folder": start(folder(WEIGHTS), WEIGHTS),
    "header of 2^60 bytes": patched(struct.pack("<Q", 2**60), 0),
    "header of a list": header(lambda head: []),
    "header without end": header(lambda head: b'{"a":' * 20_000),
    "tensor beyond the file": header(other_offsets),
    "tensor of an unknown type": header(other_type),
    "tensor of a negative shape": header(negative),
    "tensor that is a number": header(no_object),
    "tensors of other shapes": tensors(transposed, "wrong shape"),
    "weights of not a number": tensors(nan, "iteration 1"),
    "index of no tensors": index({"weight_map": {}}),
    "index of lost tensors": index({"weight_map": {"a": "model-00001-of-00001.safetensors"}}),
    "no tokenizer": start(lambda base: [path.unlink() for path in base.glob("tokenizer*")],
                          "tokenizer"),
    "tokenizer of nothing": damaged("tokenizer.json", ""),
    "tokenizer of another model": damaged("tokenizer.json", '{"model": {"type": "Magic"}}'),
    "tokenizer settings of a list": damaged("tokenizer_config.json", "[]"),
    "template that is broken": template("{% for x in %}"),
    "template of nothing": template("x"),
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
