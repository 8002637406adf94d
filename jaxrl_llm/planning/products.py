"""Operations of the matrix products in a compiled program's text, instruction by instruction.

A convolution counts the pairs of a kernel's position and an output's that meet an input, neither
padding nor the zeros that a dilation puts between, because a TPU's compiler writes batched and
windowed products as such convolutions. Kernels have no products in the text.

Source: own derivation, from XLA's definition of a convolution.
"""

import functools
import math
import re

import numpy as np

from jaxrl_llm.planning import hlo

_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_GROUPS = re.compile(r"\b(feature|batch)_group_count=(\d+)")
_CONTRACTED = re.compile(r'\blhs_contracting_dim(?:s|ensions)"?[=:]\s*[\[{]([^\]}]*)')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_KERNELS = ("tpu_custom_call", "triton_kernel_call", "__gpu$xla.gpu.triton", "__cudnn$fmha")


def count_operations(module: hlo.Module, instruction: hlo.Instruction,
                     computation: hlo.Computation) -> float:
  """Returns the operations of one run of an instruction, those inside a fusion included."""
  if instruction.opcode == "fusion":
    return sum(_alone(nested, where) for nested, where in hlo.inner(module, instruction))
  return _alone(instruction, computation)


def is_kernel(instruction: hlo.Instruction) -> bool:
  """Returns whether an instruction calls a kernel, whose products the text does not show."""
  match = _TARGET.search(instruction.attributes) if instruction.opcode == "custom-call" else None
  return match is not None and match[1].startswith(_KERNELS)


def _alone(instruction: hlo.Instruction, computation: hlo.Computation) -> float:
  if instruction.opcode == "convolution":
    return _convolution(instruction, computation)
  if instruction.opcode in ("dot", "custom-call"):
    return _dot(instruction, computation)
  return 0.0


def _dot(instruction: hlo.Instruction, computation: hlo.Computation) -> float:
  """Of a dot, or of a call of a GPU's library that names its contracted axes."""
  match = _CONTRACTED.search(instruction.attributes)
  if match is None:
    return 0.0
  left = computation.by_name[instruction.operands[0]].buffers[0].dims
  contracted = math.prod(left[int(axis)] for axis in re.findall(r"\d+", match[1]))
  return 2.0 * math.prod(instruction.buffers[0].dims) * contracted


def _convolution(instruction: hlo.Instruction, computation: hlo.Computation) -> float:
  left, right = (computation.by_name[name].buffers[0].dims for name in instruction.operands)
  of_left, of_right, of_output = _LABELS.search(instruction.attributes).groups()
  output = instruction.buffers[0].dims
  groups = {name: int(count) for name, count in _GROUPS.findall(instruction.attributes)}
  operations = 2.0 * output[of_output.index("f")] * (
      left[of_left.index("f")] // groups.get("feature", 1)) * (
          left[of_left.index("b")] // groups.get("batch", 1))
  window = _window(instruction.attributes)
  for axis in range(sum(label.isdigit() for label in of_left)):
    sizes = tuple(x[labels.index(str(axis))] for x, labels in
                  ((left, of_left), (right, of_right), (output, of_output)))
    operations *= _meetings(sizes, tuple(window[name][axis] if name in window else default
                                         for name, default in _WINDOW_DEFAULTS))
  return operations


_WINDOW_DEFAULTS = (("stride", 1), ("pad", 0), ("lhs_dilate", 1), ("rhs_dilate", 1))


def _window(attributes: str) -> dict[str, list[int]]:
  """The numbers of a window by their name, for each axis; of the padding, that before the first."""
  match = _WINDOW.search(attributes)
  entries = (entry.split("=") for entry in match[1].split()) if match else ()
  return {name: [int(number.split("_")[0]) for number in numbers.split("x")]
          for name, numbers in entries}


@functools.cache
def _meetings(sizes: tuple[int, ...], window: tuple[int, ...]) -> int:
  """Returns the number of (kernel position, output position) pairs that read an input, on one axis.

  Args:
    sizes: of the axis, of input, kernel and output.
    window: (stride of the outputs over the input with its zeros, positions before the input,
      distance of the inputs, distance of the kernel's positions).
  """
  left, right, output = sizes
  stride, pad, dilated, apart = window
  at = np.arange(output) * stride - pad
  positions = (at + kernel * apart for kernel in range(right))
  return sum(int(np.count_nonzero((x % dilated == 0) & (x >= 0) & (x < left * dilated)))
             for x in positions)
