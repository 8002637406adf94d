"""Lists of token ids as arrays of few shapes, so that few programs are compiled. On the host."""

from collections.abc import Sequence

import numpy as np

WIDTH = 16  # columns come in multiples of this


def padded_rows(rows: Sequence[Sequence[int]], copies: int = 1, fill: int = 0
                ) -> tuple[np.ndarray, np.ndarray]:
  """Returns (tokens [R * copies, L], length [R * copies]), int32, each row `copies` times in a row.

  R is the next power of two, filled with copies of the first row; L is the next multiple of WIDTH.

  Args:
    rows: at least one, each with at least one token.
    copies: contiguous copies of each row.
    fill: id after a row's end.

  Raises:
    ValueError: no rows, or an empty one.
  """
  if not rows or not all(rows):
    raise ValueError(f"padded_rows: {len(rows)} rows, the shortest of "
                     f"{min(map(len, rows), default=0)} tokens; allowed are one or more, each of "
                     "one token or more. Fix: rows that begin with a prompt.")
  count = 1 << (len(rows) - 1).bit_length()
  width = -(-max(map(len, rows)) // WIDTH) * WIDTH
  tokens, length = np.full((count, width), fill, np.int32), np.zeros(count, np.int32)
  for index in range(count):
    row = rows[index] if index < len(rows) else rows[0]
    tokens[index, :len(row)], length[index] = row, len(row)
  return np.repeat(tokens, copies, 0), np.repeat(length, copies)
