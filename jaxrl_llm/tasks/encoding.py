"""Ids of a text."""

from tokenizers import models


def encode(tokenizer, text: str) -> list[int]:
  """Returns the ids of `text`, without special tokens.

  Raises:
    ValueError: a character that a character tokenizer does not know. Sub-word tokenizers cover all
      text, and need not give it back letter for letter.
  """
  ids = tokenizer.encode(text, add_special_tokens=False)
  backend = getattr(tokenizer, "backend_tokenizer", None)
  by_characters = backend is not None and isinstance(backend.model, models.WordLevel)
  if by_characters and tokenizer.decode(ids) != text:
    raise ValueError(
        f"text {text!r} does not survive the tokenizer: it decodes to {tokenizer.decode(ids)!r}")
  return ids
