"""Lists of ids as arrays: few shapes, copies side by side, bad rows refused."""

import numpy as np
import pytest

from experiments.tables_lib import rows


def test_rows_stand_in_front_with_their_copies():
  tokens, length = rows.padded_rows([[5, 6], [7], [8] * 17], copies=2, fill=9)
  assert tokens.shape == (8, 2 * rows.WIDTH) and tokens.dtype == length.dtype == np.int32
  np.testing.assert_array_equal(length, [2, 2, 1, 1, 17, 17, 2, 2])
  np.testing.assert_array_equal(tokens[:4, :3], [[5, 6, 9], [5, 6, 9], [7, 9, 9], [7, 9, 9]])
  assert (tokens[4, :17] == 8).all() and (tokens[4, 17:] == 9).all()


def test_few_shapes_serve_many_rows():
  shapes = {rows.padded_rows([[1] * n] * r)[0].shape for r in range(1, 65) for n in range(1, 33)}
  assert len(shapes) == 14  # 1, 2, 4, .. 64 rows of 16 or 32 columns


@pytest.mark.parametrize("given", [[], [[1], []]])
def test_rows_without_ids_are_refused(given):
  with pytest.raises(ValueError, match="allowed are one or more, each of one token or more"):
    rows.padded_rows(given)
