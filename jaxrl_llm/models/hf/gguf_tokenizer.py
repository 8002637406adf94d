"""The tokenizer that the metadata of a GGUF file describe, as llama.cpp reads them."""

import collections
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from jaxrl_llm.models.hf.errors import CheckpointError

CONTROL, USER_DEFINED = 3, 4  # types of tokens that stay whole in a text
_LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_QWEN2 = _LLAMA3.replace("{1,3}", "")
# tokenizer.ggml.pre -> what cuts a text into words before ByteLevel: an expression; digits one by
# one and then GPT-2's expression; or that alone.
DIGITS, GPT2 = "digits", ""
WORDS = {
    "default": GPT2, "gpt-2": GPT2, "smollm": DIGITS,
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
}


def build(file: Path, metadata: dict[str, Any]):
  """Returns the tokenizer, of transformers' class PreTrainedTokenizerFast; None if there is none.

  It is what transformers makes of the file, but for `smollm`, whose digits are cut one by one there
  only where at most one space precedes them; llama.cpp and the model's published tokenizer do so
  everywhere.

  Raises:
    CheckpointError: a kind of tokenizer that is not supported, or metadata that make none.
  """
  from transformers import PreTrainedTokenizerFast  # takes seconds

  values = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
  kind, pre = values.get("model"), values.get("pre", "default")
  if kind in (None, "none", "no_vocab"):
    return None
  if kind not in ("gpt2", "llama") or (kind == "gpt2" and pre not in WORDS):
    raise CheckpointError(
        f"{file}: tokenizer.ggml.model = {kind!r} with tokenizer.ggml.pre = {pre!r} is not "
        f"supported. Supported: 'llama', and 'gpt2' with {', '.join(WORDS)}. Fix: another file.")
  try:
    tokenizer = _byte_level(values, pre) if kind == "gpt2" else _sentencepiece(values)
    tokens, types = values["tokens"], values.get("token_type", ())
    for marked, special in ((CONTROL, True), (USER_DEFINED, False)):
      added = [AddedToken(token, normalized=False, special=special)
               for token, type_ in zip(tokens, types, strict=True) if type_ == marked]
      (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special_tokens = {f"{name}_token": tokens[values[f"{key}_token_id"]]
                      for name, key in names.items() if f"{key}_token_id" in values}
    _add_ends(tokenizer, special_tokens, values.get("add_bos_token", kind == "llama"),
              values.get("add_eos_token", False))
  except Exception as error:  # whatever `tokenizers` raises on merges that do not fit the tokens
    raise CheckpointError(f"{file}: tokenizer.ggml.* make no tokenizer ({error!r}). Fix: fetch the "
                          "file again.") from error
  return PreTrainedTokenizerFast(
      tokenizer_object=tokenizer, chat_template=metadata.get("tokenizer.chat_template"),
      clean_up_tokenization_spaces=False, **special_tokens)


def _byte_level(values: dict[str, Any], pre: str) -> Tokenizer:
  merges = [tuple(merge.split(" ")) for merge in values["merges"]]
  tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(values["tokens"])}, merges))
  words = WORDS[pre]
  steps: list = [pre_tokenizers.ByteLevel(add_prefix_space=False,
                                          use_regex=words in (DIGITS, GPT2))]
  if words == DIGITS:
    steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
  elif words != GPT2:
    steps.insert(0, pre_tokenizers.Split(Regex(words), behavior="isolated"))
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def _sentencepiece(values: dict[str, Any]) -> Tokenizer:
  """Llama 2's: spaces are U+2581, a character without a token becomes its bytes."""
  vocabulary = {token: i for i, token in enumerate(values["tokens"])}
  merges = [tuple(merge.split(" ")) for merge in values["merges"]] if "merges" in values else (
      _merges(vocabulary, values["scores"]))
  tokenizer = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=True, byte_fallback=True))
  prefix = values.get("add_space_prefix", True)
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
      prepend_scheme="first" if prefix else "never", split=False)
  tokenizer.decoder = decoders.Sequence([
      decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
      *([decoders.Strip(content=" ", left=1)] if prefix else [])])
  return tokenizer


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
  """Returns the merges that a vocabulary implies, the best score first."""
  merges = collections.defaultdict(list)
  for token, index in vocabulary.items():
    pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
    merges[scores[index]] += sorted(
        (pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary),
        key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
  return [pair for score in sorted(merges, reverse=True) for pair in
          sorted(merges[score], key=lambda pair: (len(pair[0]), len(pair[1])), reverse=True)]


def _add_ends(tokenizer: Tokenizer, special: dict[str, str], bos: bool, eos: bool) -> None:
  """Makes encoding with special tokens begin and end as the file says."""
  first, last = [special["bos_token"]] * bool(bos), [special["eos_token"]] * bool(eos)
  if first or last:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last], pair=[*first, "$A", *last, *(f"{t}:1" for t in first), "$B:1",
                                            *(f"{t}:1" for t in last)],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*first, *last}])
