"""Tokenizers of transformers: from a checkpoint, from an alphabet, or over bytes."""

import json
import logging
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jaxrl_llm.config import ConfigError
from jaxrl_llm.tasks.encoding import encode

__all__ = ["byte_tokenizer", "character_tokenizer", "encode", "load_tokenizer", "stop_ids"]

PAD, EOS = "<pad>", "<eos>"
logger = logging.getLogger(__name__)


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
  """Returns a tokenizer with one token per character of `alphabet`.

  Ids 0 and 1 are padding and end of sequence.
  A character outside the alphabet is an error in `encode`, never an unknown token.
  """
  vocabulary = {PAD: 0, EOS: 1} | {c: i + 2 for i, c in enumerate(alphabet)}
  tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
  tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
  tokenizer.decoder = decoders.Fuse()
  return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)


def byte_tokenizer() -> PreTrainedTokenizerFast:
  """Returns a tokenizer with one token per UTF-8 byte, for models that start from nothing.

  It has 258 ids and encodes any text. Ids 0 and 1 are padding and end of sequence.
  """
  letters = sorted(pre_tokenizers.ByteLevel.alphabet())
  vocabulary = {PAD: 0, EOS: 1} | {c: i + 2 for i, c in enumerate(letters)}
  tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  tokenizer.decoder = decoders.ByteLevel()
  return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)


def load_tokenizer(path: str | Path):
  """Returns the tokenizer of a checkpoint directory, always with a padding id.

  A tokenizer without a padding token pads with its end of sequence. The two ids may be equal,
  because masks are never read from ids.

  Raises:
    ConfigError: no such folder, no tokenizer in it, one that cannot be read, or one without an end
      of sequence.
  """
  path = Path(path)
  if not path.is_dir():
    raise ConfigError(
        f"pretrained = {str(path)!r}: no such folder. Fix: a local checkpoint directory with "
        "tokenizer.json or tokenizer_config.json.")
  names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
  if not any((path / name).exists() for name in names):
    raise ConfigError(
        f"pretrained = {str(path)!r}: no tokenizer in this folder (none of {', '.join(names)}). "
        "Fix: save the tokenizer into it, tokenizer.save_pretrained(folder).")
  from transformers import AutoTokenizer  # imports PyTorch, where that is installed

  try:
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
  except Exception as error:  # whatever the parsers of a damaged file raise
    raise ConfigError(f"pretrained = {str(path)!r}: the tokenizer cannot be read: {error}. "
                      "Fix: complete tokenizer files.") from error
  if tokenizer.eos_token_id is None:
    raise ConfigError(f"pretrained = {str(path)!r}: the tokenizer has no end of sequence. "
                      'Fix: "eos_token" in tokenizer_config.json.')
  if tokenizer.pad_token_id is None:
    tokenizer.pad_token = tokenizer.eos_token
  return tokenizer


def stop_ids(tokenizer, path: str | Path | None = None, chat: bool = True) -> tuple[int, ...]:
  """Returns the ids that end a completion, without repetitions.

  The tokenizer's end of sequence comes first, then the ids of generation_config.json, or of
  config.json if there is none, then the token with which the chat template ends a turn. A base
  model may have a template whose <|im_end|> is in neither file: rows would continue after it, and
  the log says so.

  Args:
    path: checkpoint directory; None: the folder that the tokenizer was loaded from.
    chat: whether prompts are made by the chat template.

  Raises:
    ConfigError: the file is malformed, or names an id that is no token id.
  """
  folder = Path(path if path is not None else tokenizer.name_or_path or "")
  file = folder / "generation_config.json"
  if not file.is_file() and folder != Path():  # a task's own tokenizer has no folder
    file = folder / "config.json"
  eos_ids = []
  if file.is_file():
    try:
      eos_ids = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
      raise ConfigError(
          f"{file}: no JSON object: {error}. Fix: repair the file or remove it.") from error
    if eos_ids is None:
      eos_ids = []
    elif not isinstance(eos_ids, list):
      eos_ids = [eos_ids]
  size = len(tokenizer)
  bad = [i for i in eos_ids if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < size]
  if bad:
    raise ConfigError(
        f"{file}: eos_token_id = {bad[0]!r}: a token id of 0 to {size - 1}, or a list of them, was "
        "expected. Fix: repair the file or remove it.")
  out = dict.fromkeys([tokenizer.eos_token_id, *eos_ids])
  end = None
  if chat:
    from jaxrl_llm.tasks.chat_templates import turn_end
    end = turn_end(tokenizer)
  if end is not None and end not in out:
    logger.warning(
        "the chat template of %s ends turns with %r (id %d), which is no end of sequence there: "
        "completions stop at it, too. Fix: eos_token_id in generation_config.json, for other "
        "programs", folder, tokenizer.convert_ids_to_tokens(end), end)
    out[end] = None
  return tuple(out)
