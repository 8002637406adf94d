"""Sums of digits modulo 10 with every partial sum written, and responses with one planted error.

  prompt     BEGIN 7 3 8 2        response   7 0 8 0 END

A response is right if its last sum is. In a planted one, a partial sum is wrong and everything
after it follows from it, so the wrong sum is the token that decides. Own derivation.
"""

import numpy as np

BEGIN, END, PAD = 10, 11, 12
VOCABULARY = 13
TERMS = 6
PROMPT, RESPONSE = 1 + TERMS, TERMS + 1  # tokens; the response with its END


def prompts(count: int, seed: int, held_out: bool) -> np.ndarray:
  """Returns prompts [count, PROMPT] int32; one in four sequences of digits is held out."""
  rng = np.random.default_rng([seed, held_out])
  digits = rng.integers(0, 10, (8 * count, TERMS))
  held_out_mask = np.random.default_rng(0).random(10**TERMS) < 0.25
  mine = held_out_mask[digits @ 10 ** np.arange(TERMS)] == held_out
  return np.column_stack([np.full(count, BEGIN), digits[mine][:count]]).astype(np.int32)


def responses(prompts: np.ndarray, errors: np.ndarray | int = 0) -> np.ndarray:
  """Returns responses [B, RESPONSE] int32 to prompts [B, PROMPT].

  Args:
    errors: [B, TERMS], added to each partial sum and carried on; 0: the right response.
  """
  sums = np.cumsum(prompts[:, 1:] + errors, 1) % 10
  return np.column_stack([sums, np.full(len(prompts), END)]).astype(np.int32)


def careless(prompts: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
  """Returns responses of a teacher whose partial sums, but for the first, are each wrong with
  probability `rate`, by any amount; it continues from its mistake.
  """
  errors = rng.integers(1, 10, (len(prompts), TERMS)) * (rng.random((len(prompts), TERMS)) < rate)
  errors[:, 0] = 0
  return responses(prompts, errors)


def corrupted(prompts: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns (responses with one wrong partial sum [B, RESPONSE], its position in each [B]).

  Positions are 1 to TERMS - 1: the first partial sum only copies a digit.
  """
  rng = np.random.default_rng(seed)
  error_index = rng.integers(1, TERMS, len(prompts))
  errors = np.zeros((len(prompts), TERMS), int)
  errors[np.arange(len(prompts)), error_index] = rng.integers(1, 10, len(prompts))
  return responses(prompts, errors), error_index


def correct(prompts: np.ndarray, completions: np.ndarray) -> np.ndarray:
  """Returns whether responses [B, >= RESPONSE] state the sum and then end, [B] bool."""
  right = responses(prompts)
  return (completions[:, TERMS - 1] == right[:, TERMS - 1]) & (completions[:, TERMS] == END)
