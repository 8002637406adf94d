"""The table of our parameters and the tensors of a Hugging Face checkpoint, for both directions.

A parameter that is stacked over scanned layers or over experts comes from several tensors. Each
tensor holds the parameter's other axes in another order, some of them merged. `axes` lists, for
each axis of the tensor, the axes of the parameter that are merged into it.
"""

import dataclasses
import itertools
import math
from typing import Any

import jax
import numpy as np

from jaxrl_llm.models.families import family
from jaxrl_llm.models.hf.extra_tensors import is_beside
from jaxrl_llm.models.hf.network_config import model_type
from jaxrl_llm.models.transformer import Model


@dataclasses.dataclass(frozen=True)
class Entry:
  """One parameter and its tensors.

  Attributes:
    path: keys of the parameter, joined by "/".
    shape: shape of the parameter.
    names: (index into the stacked axes, name of the tensor) in order. A parameter that is not
      stacked has one tensor, with index ().
    axes: for each axis of the tensors, the axes of the parameter, counted after the stacked ones,
      that are merged into it.
  """

  path: str
  shape: tuple[int, ...]
  names: tuple[tuple[tuple[int, ...], str], ...]
  axes: tuple[tuple[int, ...], ...]

  @property
  def stacked(self) -> int:
    """Number of stacked axes, which are the first ones."""
    return len(self.names[0][0])

  @property
  def stored_shape(self) -> tuple[int, ...]:
    """Shape of each tensor."""
    inner = self.shape[self.stacked:]
    return tuple(math.prod(inner[a] for a in group) for group in self.axes)

  def to_stored(self, part: np.ndarray) -> np.ndarray:
    """Returns the tensor to store, contiguous, from the parameter without its stacked axes."""
    order = list(itertools.chain(*self.axes))
    return np.ascontiguousarray(part.transpose(order).reshape(self.stored_shape))

  def from_stored(self, read, index: tuple[slice, ...]) -> np.ndarray:
    """Returns a part of the parameter, reading no more of the tensor than the part needs.

    Args:
      read: function from slices over the tensor's axes to an array.
      index: slices over the parameter's axes after the stacked ones.
    """
    inner = self.shape[self.stacked:]
    spans = [s.indices(size)[:2] for s, size in zip(index, inner, strict=True)]
    cuts, sizes, inner_cuts = [], [], [slice(None)] * len(inner)
    for group in self.axes:
      start, stop = spans[group[0]]
      # Of merged axes only the first is cut while reading; the others are read in full and cut
      # below.
      block = math.prod(inner[a] for a in group[1:])
      cuts.append(slice(start * block, stop * block))
      sizes += [stop - start, *(inner[a] for a in group[1:])]
      for a in group[1:]:
        inner_cuts[a] = index[a]
    order = list(itertools.chain(*self.axes))
    return read(tuple(cuts)).reshape(sizes).transpose(np.argsort(order))[tuple(inner_cuts)]


def by_path(tree) -> dict[str, Any]:
  """Returns the leaves of nested dicts by paths such as blocks/0/attention/query, in the tree's
  order.
  """
  return {jax.tree_util.keystr(keys, simple=True, separator="/"): leaf
          for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def tensor_table(model: Model) -> list[Entry]:
  """Returns an Entry for every parameter that checkpoints have, in file order; not the extra ones.
  """
  cfg = model.config
  names_of = family(model_type(cfg))
  dense = {**names_of.layer, **names_of.dense}
  mixture = {**names_of.layer, **names_of.experts} if cfg.num_experts else dense
  entries = []
  for ours, leaf in by_path(model.shapes()).items():
    if is_beside(ours):
      continue
    if not ours.startswith("blocks/"):
      name, axes = names_of.top[ours]
      names = (((), name),)
    elif cfg.scan_layers:
      name, axes = mixture[ours.removeprefix("blocks/")]
      names = tuple(((i, *expert), f"model.layers.{i}.{full}")
                    for i in range(cfg.num_layers)
                    for expert, full in _experts(name, cfg.num_experts))
    else:
      _, layer, inner = ours.split("/", 2)
      name, axes = (dense if int(layer) in cfg.dense_layers else mixture)[inner]
      names = tuple((expert, f"model.layers.{layer}.{full}")
                    for expert, full in _experts(name, cfg.num_experts))
    entries.append(Entry(ours, tuple(leaf.shape), names, axes))
  return entries


def _experts(name: str, experts: int) -> list[tuple[tuple[int, ...], str]]:
  """Returns (index, name) of each expert's tensor, or one entry with index () if `name` has no
  expert.
  """
  if "{}" not in name:
    return [((), name)]
  return [((e,), name.format(e)) for e in range(experts)]
