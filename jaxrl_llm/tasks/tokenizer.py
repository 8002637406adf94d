"""Tokenizers are transformers' own, whether they come from a checkpoint or from an alphabet."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
  """One token per character of `alphabet`; ids 0 and 1 are padding and end of sequence.

  A character outside the alphabet is an error when encoded, never an unknown token.
  """
  vocabulary = {PAD: 0, EOS: 1} | {c: i + 2 for i, c in enumerate(alphabet)}
  tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
  tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
  tokenizer.decoder = decoders.Fuse()
  return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)


def encode(tokenizer, text: str) -> list[int]:
  """Ids of `text`, without special tokens.

  Raises:
    ValueError: a character that the tokenizer does not know.
  """
  ids = tokenizer.encode(text, add_special_tokens=False)
  if tokenizer.decode(ids) != text:
    raise ValueError(f"text {text!r} does not survive the tokenizer: it decodes to {tokenizer.decode(ids)!r}")
  return ids
