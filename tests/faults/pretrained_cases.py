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


def cut(base):
  content = (base / WEIGHTS).read_bytes()
  (base / WEIGHTS).write_bytes(content[:-100])


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


def without_first(content):
  content.pop(next(iter(content)))
  return content


def transposed(content):
  return {name: value.T.copy() for name, value in content.items()}


CASES = {
    "not there": main({"pretrained": "{here}/none"}, "pretrained", "none", kind="pretrained"),
    "file": main({"pretrained": "{here}/x"}, "pretrained", kind="pretrained", files={"x": "x"}),
    "empty folder": main({"pretrained": "{here}/d"}, "config.json", kind="pretrained",
                         files={"d/.keep": ""}),
    "hub name of three parts": main({"pretrained": "a/b/c"}, "a/b/c", kind="pretrained"),
    "hub name of spaces": main({"pretrained": "a b"}, "pretrained", kind="pretrained"),
    "bucket of another service": main({"pretrained": "s3://a/b"}, "s3://a/b", kind="pretrained"),
    "no config": start(lambda base: (base / "config.json").unlink(), "config.json"),
    "config of nothing": written("config.json", "", "JSON"),
    "config of bytes": written("config.json", b"\xff\xfe", "JSON"),
    "config of a list": written("config.json", "[]", "object"),
    "config without end": written("config.json", '{"a": ' * 50_000),
    "config that is a folder": start(folder("config.json"), "config.json"),
    "no kind": configured({"model_type": None}, "model_type"),
    "another kind": configured({"model_type": "mamba"}, "mamba"),
    "kind of a list": configured({"model_type": ["llama"]}, "model_type"),
    "architectures of a text": configured({"architectures": "Qwen3ForCausalLM"}, "architectures"),
    "another architecture": configured({"architectures": ["X"]}, "architectures"),
    "no layers": configured({"num_hidden_layers": 0}, "num_layers"),
    "layers below 0": configured({"num_hidden_layers": -3}),
    "more layers than weights": configured({"num_hidden_layers": 3}, "missing", file="config.json"),
    "a billion layers": configured({"num_hidden_layers": 10**9}),
    "layers of a text": configured({"num_hidden_layers": "two"}),
    "half a layer": configured({"num_hidden_layers": 1.5}),
    "no heads": configured({"num_attention_heads": 0}),
    "more kv heads than heads": configured({"num_key_value_heads": 7}),
    "odd head": configured({"head_dim": 7}, "head_dim"),
    "width of nothing": configured({"hidden_size": None}),
    "width of 10^30": configured({"hidden_size": 10**30}),
    "vocabulary of 1": configured({"vocab_size": 1}, "vocab_size"),
    "vocabulary below the tokenizer": start(
        lambda base: rewritten(base / "config.json", vocab_size=3), "vocab_size = 3"),
    "another activation": configured({"hidden_act": "gelu"}, "hidden_act"),
    "epsilon below 0": configured({"rms_norm_eps": -1.0}, "norm_epsilon"),
    "epsilon of a text": configured({"rms_norm_eps": "small"}),
    "base of 0": configured({"rope_theta": 0, "rope_parameters": None}, "rope"),
    "stretching that is unknown": configured(
        {"rope_parameters": {"rope_type": "magic", "rope_theta": 1e4}}, "magic"),
    "stretching of a text": configured({"rope_parameters": "yarn"}),
    "stretching without a factor": configured(
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}),
    "factor of 0": configured(
        {"rope_parameters": {"rope_type": "linear", "factor": 0.0, "rope_theta": 1e4}}),
    "quantized": configured({"quantization_config": {"bits": 4}}, "quantization_config"),
    "sliding window": configured({"use_sliding_window": True, "sliding_window": 4,
                                  "layer_types": ["sliding_attention"]}, "sliding"),
    "tied and not": configured({"tie_word_embeddings": "maybe"}),
    "no weights": start(lambda base: (base / WEIGHTS).unlink(), WEIGHTS),
    "weights of PyTorch": start(lambda base: (base / WEIGHTS).rename(base / "pytorch_model.bin"),
                                WEIGHTS),
    "weights of nothing": written(WEIGHTS, b""),
    "weights of zeros": written(WEIGHTS, b"\0" * 1000),
    "weights that are a web page": written(WEIGHTS, "<!DOCTYPE html><html></html>" * 9),
    "pointer of Git LFS": written(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:0000\nsize 123\n"),
    "weights that are cut": start(cut, WEIGHTS),
    "weights that are a folder": start(folder(WEIGHTS), WEIGHTS),
    "header of 2^60 bytes": patched(struct.pack("<Q", 2**60), 0),
    "header of no JSON": header(lambda head: b"{" * 40),
    "header of a list": header(lambda head: []),
    "header without end": header(lambda head: b'{"a":' * 20_000),
    "tensor beyond the file": header(other_offsets),
    "tensor of an unknown type": header(other_type),
    "tensor of a negative shape": header(negative),
    "tensor that is a number": header(no_object),
    "tensor that is missing": tensors(without_first, "missing"),
    "tensor that is left over": tensors(
        lambda content: content | {"model.extra": next(iter(content.values()))}, "model.extra"),
    "tensors of other shapes": tensors(transposed, "wrong shape"),
    "tensors of whole numbers": tensors(
        lambda content: {name: value.astype("int32") for name, value in content.items()},
        "wrong dtype"),
    "weights of not a number": tensors(nan, "iteration 1"),
    "index of nothing": index(""),
    "index of a list": index([]),
    "index without a map": index({"metadata": {}}),
    "index of no tensors": index({"weight_map": {}}),
    "index of a lost shard": index({"weight_map": {"a": "model-00009-of-00009.safetensors"}}),
    "index of lost tensors": index({"weight_map": {"a": "model-00001-of-00001.safetensors"}}),
    "index of numbers": index({"weight_map": {"a": 3}}),
    "index that leaves the folder": index({"weight_map": {"a": "../../etc/passwd"}}),
    "no tokenizer": start(lambda base: [path.unlink() for path in base.glob("tokenizer*")],
                          "tokenizer"),
    "tokenizer of nothing": damaged("tokenizer.json", ""),
    "tokenizer of a list": damaged("tokenizer.json", "[]"),
    "tokenizer of no model": damaged("tokenizer.json", '{"version": "1.0"}'),
    "tokenizer of another model": damaged("tokenizer.json", '{"model": {"type": "Magic"}}'),
    "tokenizer settings of nothing": damaged("tokenizer_config.json", ""),
    "tokenizer settings of a list": damaged("tokenizer_config.json", "[]"),
    "template that is broken": template("{% for x in %}"),
    "template that raises": template("{{ raise_exception('no') }}"),
    "template of nothing": template("x"),
    "sampling of a list": written("generation_config.json", "[]"),
    "stop token of a text": start(lambda base: (base / "generation_config.json").write_text(
        '{"eos_token_id": "end"}'), "generation_config.json"),
    "stop token out of range": start(lambda base: (base / "generation_config.json").write_text(
        '{"eos_token_id": 10000}'), "generation_config.json"),
    "adapter of no JSON": adapter("{"),
    "adapter of a list": adapter("[]"),
    "adapter of another kind": adapter({"peft_type": "PREFIX_TUNING"}, b"", "PREFIX_TUNING"),
    "adapter of no base": adapter({"base_model_name_or_path": None}),
    "adapter of a base that is gone": adapter({"base_model_name_or_path": "/none"}, b"", "/none"),
    "adapter of rank 0": adapter({"r": 0}),
    "adapter of rank text": adapter({"r": "two"}),
    "adapter of itself": adapter({"base_model_name_or_path": "."}),
    "adapter of empty weights": adapter({}, b""),
    "adapter of no targets": adapter({"target_modules": []}),
    "adapter of broken targets": adapter({"target_modules": "("}),
}
