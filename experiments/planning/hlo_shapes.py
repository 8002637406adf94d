"""Shapes in a compiled program's text: arrays with their bytes and the memory that they lie in."""

import dataclasses
import math
import re

_SHAPE = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](\{[^{}]*\})?")
_SPACE = re.compile(r"S\((\d+)\)")


@dataclasses.dataclass(frozen=True)
class Buffer:
  """An array: `size` in bytes without padding; `space` numbers its memory, 0 is the main one."""

  size: int
  space: int
  dims: tuple[int, ...] = ()


def buffers(shape: str) -> tuple[Buffer, ...]:
  """Returns the arrays of a shape as the text has it, such as `(f32[8,2]{1,0}, s32[])`."""
  out = []
  for dtype, dims, layout in _SHAPE.findall(shape):
    space = _SPACE.search(layout)
    sides = tuple(int(d) for d in dims.split(",") if d)
    size = -(-math.prod(sides) * _bits(dtype) // 8)
    out.append(Buffer(size, int(space[1]) if space else 0, sides))
  return tuple(out)


def _bits(dtype: str) -> int:
  if dtype == "pred":
    return 8
  if dtype in ("token", "opaque"):
    return 0
  match = re.match(r"(?:bf|f|s|u|c)(\d+)", dtype)
  return int(match[1]) if match else 0
