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

from experiments.planning import hlo

_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_GROUPS = re.compile(r"\b(feature|batch)_group_count=(\d+)")
_CONTRACTED = re.compile(r'\blhs_contracting_dim(?:s|ensions)"?[=:]\s*[\[{]([^\]}]*)')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_KERNELS = ("tpu_custom_call", "triton_kernel_call", "__gpu$xla.gpu.triton", "__cudnn$fmha")


def count_operations(module: hlo.Module, instruction: hlo.Instruction,
                     computation: hlo.Computation) -> float:
  """Returns the operations of one run of an instruction, including those inside a fusion."""
  if instruction.opcode == "fusion":
    return sum(_operations(nested, parent) for nested, parent in hlo.inner(module, instruction))
  return _operations(instruction, computation)


def is_kernel(instruction: hlo.Instruction) -> bool:
  """Returns whether an instruction calls a kernel, whose products the text does not show."""
  match = _TARGET.search(instruction.attributes) if instruction.opcode == "custom-call" else None
  return match is not None and match[1].startswith(_KERNELS)


def _operations(instruction: hlo.Instruction, computation: hlo.Computation) -> float:
  if instruction.opcode == "convolution":
    return _convolution(instruction, computation)
  if instruction.opcode in ("dot", "custom-call"):
    return _dot(instruction, computation)
  return 0.0


def _dot(instruction: hlo.Instruction, computation: hlo.Computation) -> float:
  """Returns the product of a dot, or of a call of a GPU's library that names its contracted axes.
  """
  match = _CONTRACTED.search(instruction.attributes)
  if match is None:
    return 0.0
  lhs = computation.by_name[instruction.operands[0]].buffers[0].dims
  contracted = math.prod(lhs[int(axis)] for axis in re.findall(r"\d+", match[1]))
  return 2.0 * math.prod(instruction.buffers[0].dims) * contracted


def _convolution(instruction: hlo.Instruction, computation: hlo.Computation) -> float:
  lhs, rhs = (computation.by_name[name].buffers[0].dims for name in instruction.operands)
  lhs_labels, rhs_labels, output_labels = _LABELS.search(instruction.attributes).groups()
  output = instruction.buffers[0].dims
  groups = {name: int(count) for name, count in _GROUPS.findall(instruction.attributes)}
  operations = 2.0 * output[output_labels.index("f")] * (
      lhs[lhs_labels.index("f")] // groups.get("feature", 1)) * (
          lhs[lhs_labels.index("b")] // groups.get("batch", 1))
  window = _window(instruction.attributes)
  for axis in range(sum(label.isdigit() for label in lhs_labels)):
    sizes = tuple(x[labels.index(str(axis))] for x, labels in
                  ((lhs, lhs_labels), (rhs, rhs_labels), (output, output_labels)))
    operations *= _meetings(sizes, tuple(window[name][axis] if name in window else default
                                         for name, default in _WINDOW_DEFAULTS))
  return operations


_WINDOW_DEFAULTS = (("stride", 1), ("pad", 0), ("lhs_dilate", 1), ("rhs_dilate", 1))


def _window(attributes: str) -> dict[str, list[int]]:
  """Returns the numbers of a window by their name, for each axis; of the padding, only the part
  before the first entry.
  """
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
      distance of the inputs, distance of the kernel's positions); the names are XLA's.
  """
  input_size, kernel_size, output = sizes
  stride, pad, lhs_dilation, rhs_dilation = window
  at = np.arange(output) * stride - pad
  positions = (at + kernel * rhs_dilation for kernel in range(kernel_size))
  end = input_size * lhs_dilation
  return sum(int(np.count_nonzero((x % lhs_dilation == 0) & (x >= 0) & (x < end)))
             for x in positions)
