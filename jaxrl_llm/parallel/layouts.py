"""The table from logical to physical axes, and the layouts that follow from it."""

import dataclasses
import functools
import math

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_llm.parallel.meshes import log_once

# Logical axis -> mesh axes. Axes that are not named are replicated.
RULES = {
    "rows": ("data", "fsdp"),
    "length": "sequence",
    "vocab": "tensor",
    "embed": ("fsdp", "sequence"),
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "experts": "tensor",
    # Attention needs all tokens of a row, so each device has them for some of the heads there
    # (arXiv 2309.14509).
    "attending_heads": ("tensor", "sequence"),
    "embed_of_tokens": "sequence",
}
# A token step of decoding reads every weight. So the sampler's copy is not divided over fsdp: that
# would send all weights over the wire for each token.
DECODING_RULES = {**RULES, "embed": None}

# For a part of `data`: its rows are divided only over fsdp.
INSIDE_DATA = {**RULES, "rows": "fsdp"}


def spec(axes: tuple, shape: tuple[int, ...], mesh: Mesh, rules=RULES) -> PartitionSpec:
  """Returns the physical layout of an array with these logical axes.

  A dimension that does not divide over its devices is replicated, which is logged once.

  Args:
    rules: logical axis -> mesh axes.
  """
  out: list = []
  used: set[str] = set()
  for axis, size in zip(axes, shape, strict=True):
    rule = rules.get(axis)
    names = () if rule is None else (rule,) if isinstance(rule, str) else rule
    names = tuple(n for n in names if mesh.shape[n] > 1)
    count = math.prod(mesh.shape[n] for n in names)
    if count > 1 and size % count:
      log_once(f"axis {axis!r} of size {size} does not divide over {names} = {count} devices: "
               "replicated")
    if count == 1 or size % count or used & set(names):
      out.append(None)
    else:
      used |= set(names)
      out.append(names if len(names) > 1 else names[0])
  return PartitionSpec(*out)


@dataclasses.dataclass(frozen=True)
class Layout:
  """Lays activations out by their logical axes; `Model` takes it as `constrain`.

  Attributes:
    mesh: of all devices.
    across: whether the program is one for each part of `data` (`over_data`), so that shapes are per
      part.
  """

  mesh: Mesh
  across: bool = False

  def __call__(self, x, axes: tuple):
    if self.mesh.size == 1:
      return x
    layout = self._spec(axes, x.shape)
    return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, layout))

  def _spec(self, axes: tuple, shape: tuple[int, ...]) -> PartitionSpec:
    return spec(axes, shape, self.mesh, INSIDE_DATA if self.across else RULES)

  def _shard_map(self, function, axes: set[str], in_specs, out_specs):
    """Returns function for each device's parts along `axes`."""
    names = axes | {"data"} if self.across else axes
    return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs,
                         axis_names=names, check_vma=False)

  def over_data(self, function, shared, divided, axis: int):
    """Returns function(layout, shared, divided), which each part of `data` computes separately; its
    results, with a leading axis of the parts, are not yet added up.

    Not a `shard_map`: with one axis divided by hand the compiler's division of the others fails
    where a gather's operand is divided over two of them, as the embeddings are.

    Args:
      shared: pytree that each part has wholly.
      divided: pytree of arrays whose axis `axis` is divided over `data`, and further over the
        devices that hold a part's rows.
    """
    part_layout, parts = dataclasses.replace(self, across=True), self.mesh.shape["data"]
    names = PartitionSpec(*(None,) * axis, "data", INSIDE_DATA["rows"])

    def by_part(x):
      x = x.reshape(*x.shape[:axis], parts, -1, *x.shape[axis + 1:])
      return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, names))

    run = jax.vmap(functools.partial(function, part_layout, shared), in_axes=axis,
                   spmd_axis_name="data")
    return run(jax.tree.map(by_part, divided))

  @property
  def platform(self) -> str:
    """The kind of the devices, as JAX calls it."""
    return self.mesh.devices.flat[0].platform

  @property
  def divides_tokens(self) -> bool:
    """Returns whether a row's tokens are divided over devices."""
    return self.mesh.shape["sequence"] > 1

  def by_shard(self, function, arrays: tuple, axes: tuple):
    """Returns function(*arrays), which each device computes from its own parts, as kernels must.

    Args:
      axes: logical axes of each array; the result has the first one's axes.
    """
    if self.mesh.size == 1:
      return function(*arrays)
    layouts = tuple(self._spec(names, x.shape) for x, names in zip(arrays, axes, strict=True))
    return self._shard_map(function, set(self.mesh.axis_names), layouts, layouts[0])(*arrays)

  def by_rows(self, function, rows, shared):
    """Returns function(rows, shared), which each device computes from its own tokens.

    Inside, shapes are of one device: a loop over chunks of rows is a loop over the device's rows.
    `shared` is fetched once before the function, and its gradient is reduced once after it, however
    many chunks there are. The mesh's tensor axis stays with the compiler.

    Args:
      rows: pytree of arrays [rows, tokens, ...]; so must the function's results be.
      shared: pytree of arrays that every token reads.
    """
    split = self._spec(("rows", "length"), jax.tree.leaves(rows)[0].shape[:2])
    axes = {name for names in split if names
            for name in ([names] if isinstance(names, str) else names)}
    if not axes:
      return function(rows, shared)
    # Without this the backward pass would fetch it a second time.
    shared = jax.lax.with_sharding_constraint(shared, replicated(self.mesh))
    out = self._shard_map(function, axes, (split, PartitionSpec()), split)(rows, shared)
    # The following code scans along rows, over arrays much smaller than one layer's activations.
    return jax.tree.map(lambda x: self(x, ("rows", *(None,) * (x.ndim - 1))), out)


@functools.lru_cache(maxsize=32)
def rows(mesh: Mesh) -> NamedSharding:
  """Returns the sharding that divides the leading axis over the devices that hold rows."""
  return NamedSharding(mesh, PartitionSpec(RULES["rows"]))


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding that replicates an array on each device."""
  return NamedSharding(mesh, PartitionSpec())


def param_shardings(model, mesh: Mesh, rules=RULES):
  """Returns a NamedSharding for every parameter; `rules` as in `spec`."""

  def sharding(x, axes):
    return NamedSharding(mesh, spec(axes, x.shape, mesh, rules))

  return jax.tree.map(sharding, model.shapes(), model.logical_axes())
