"""Floating-point operations of a program, counted on its jaxpr with loops multiplied out.

The compiler's own `cost_analysis` counts the body of a loop once, whatever its trips, and is absent
on GPUs. A multiplication and an addition are two operations.
"""

import collections
import dataclasses
import math
from typing import Any

from jax.extend import core

from experiments.planning import kernels

# Kinds of operations. Products are the part that the matrix units do.
WEIGHTS, ATTENTION, HEAD, KERNEL = "weights", "attention", "head", "kernel"
ELEMENTWISE, SORT = "elementwise", "sort"
READ_AGAIN = "bytes read again"  # no operations: what kernels read in addition to each operand once
PRODUCTS = (WEIGHTS, ATTENTION, HEAD, KERNEL)

# Primitives that move or relabel numbers without computing any.
_MOVES = frozenset("""
    broadcast_in_dim reshape transpose squeeze expand_dims slice dynamic_slice dynamic_update_slice
    gather scatter concatenate pad iota rev copy copy_p convert_element_type bitcast_convert_type
    sharding_constraint stop_gradient random_wrap random_unwrap device_put split axis_index
    optimization_barrier pvary pcast reduce_precision create_token name mesh_cast
    all_gather all_to_all ppermute psum psum_invariant psum_scatter reduce_scatter
""".split())
Sums = collections.defaultdict[str, float]
_REDUCES = ("reduce_", "argmax", "argmin", "cum", "scatter-add", "scatter_add")


@dataclasses.dataclass(frozen=True)
class Flops:
  """Operations of a program on all devices together, by kind.

  Attributes:
    once: outside loops without a static number of trips.
    loops: of one trip of each such loop, in the order of the program. A loop inside another one of
      them counts one trip in it.
  """

  once: dict[str, float]
  loops: tuple[dict[str, float], ...] = ()

  def total(self, trips: tuple[int, ...] = ()) -> dict[str, float]:
    """Returns operations by kind if loop k makes trips[k] trips, and one where that is not given.
    """
    operations = collections.defaultdict(float, self.once)
    for loop, times in zip(self.loops, [*trips, *[1] * len(self.loops)], strict=False):
      for kind, count in loop.items():
        operations[kind] += times * count
    return dict(operations)


def products(by_kind: dict[str, float]) -> float:
  """Returns the operations that are matrix products."""
  return sum(by_kind.get(kind, 0.0) for kind in PRODUCTS)


def count(jaxpr: core.ClosedJaxpr, head: tuple[int, int] | None = None,
          live: float = 1.0) -> Flops:
  """Counts a traced program, `jax.jit(f).trace(...).jaxpr`.

  Products with batch axes are `attention`; of the others, products that read or make a matrix of
  the shape `head` (width, vocabulary) are `head`; all further ones are `weights`. Kernels of
  attention are `kernel` by formula (kernels.py), other Pallas kernels with every block of their
  grid. A conditional counts as its branch with the most operations.
  """
  counter = _Counter(head, live)
  counter.jaxpr(jaxpr.jaxpr, 1.0, counter.once, False)
  return Flops(dict(counter.once), tuple(dict(loop) for loop in counter.loops))


class _Counter:
  """Adds up equations; `into` is where the current loop's operations go."""

  def __init__(self, head: tuple[int, int] | None, live: float = 1.0):
    self.head, self.live = head, live
    self.once: Sums = collections.defaultdict(float)
    self.loops: list[Sums] = []

  def jaxpr(self, jaxpr, times: float, into, kernel: bool) -> None:
    for eqn in jaxpr.eqns:
      self._equation(eqn, times, into, kernel)

  def _equation(self, eqn, times: float, into, kernel: bool) -> None:
    name, params = eqn.primitive.name, eqn.params
    if not eqn.outvars and not eqn.effects:
      return  # its results were saved before, so that a compiler leaves it out
    if (cost := kernels.attention(eqn, self.live)) is not None:
      into[KERNEL] += times * cost.operations
      into[READ_AGAIN] += times * cost.read_again
    elif name == "while":
      if into is self.once:
        self.loops.append(into := collections.defaultdict(float))
      self.jaxpr(params["body_jaxpr"].jaxpr, times, into, kernel)
    elif name == "cond":
      for kind, operations in self._branch(params["branches"], times, kernel).items():
        into[kind] += operations
    elif name == "scan":
      self.jaxpr(params["jaxpr"].jaxpr, times * params["length"], into, kernel)
    elif name == "shard_map":
      # Inside, shapes are per device along the manual axes.
      axes = params.get("newly_manual_axes", params.get("manual_axes", ()))
      devices = math.prod(params["mesh"].shape[axis] for axis in axes)
      self.jaxpr(_open(params["jaxpr"]), times * devices, into, kernel)
    elif name == "pallas_call":
      blocks = math.prod(x for x in params["grid_mapping"].grid if isinstance(x, int))
      self.jaxpr(_open(params["jaxpr"]), times * blocks, into, True)
    elif inner := list(_inner_jaxprs(name, params)):
      for jaxpr in inner:
        self.jaxpr(jaxpr, times, into, kernel)
    else:
      kind, operations = self._primitive(name, eqn)
      into[KERNEL if kernel and kind in PRODUCTS else kind] += times * operations

  def _branch(self, branches, times: float, kernel: bool) -> dict[str, float]:
    """Returns operations of the branch that counts; loops inside count one trip."""
    candidates = []
    for branch in branches:
      inner = _Counter(self.head, self.live)
      inner.jaxpr(branch.jaxpr, times, inner.once, kernel)
      candidates.append(Flops(inner.once, tuple(inner.loops)).total())
    return max(candidates, key=_size)

  def _primitive(self, name: str, eqn) -> tuple[str, float]:
    if name in ("dot_general", "ragged_dot", "ragged_dot_general"):
      return self._product(name, eqn)
    output = sum(math.prod(x.aval.shape) for x in eqn.outvars if hasattr(x.aval, "shape"))
    if name in _MOVES:
      return ELEMENTWISE, 0.0
    if name in ("sort", "top_k", "approx_top_k"):
      length = eqn.invars[0].aval.shape[eqn.params.get("dimension", -1)]
      size = math.prod(eqn.invars[0].aval.shape)
      return SORT, size * max(1.0, math.log2(max(length, 1)))
    if name.startswith(_REDUCES):
      return ELEMENTWISE, float(math.prod(eqn.invars[0].aval.shape))
    return ELEMENTWISE, float(output)

  def _product(self, name: str, eqn) -> tuple[str, float]:
    lhs, rhs = (x.aval.shape for x in eqn.invars[:2])
    output = eqn.outvars[0].aval.shape
    if name.startswith("ragged"):  # [m, k] x [groups, k, n]: each row meets one matrix
      return WEIGHTS, 2.0 * math.prod(lhs) * rhs[-1]
    (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
    operations = 2.0 * math.prod(output) * math.prod(lhs[i] for i in contracted)
    if batch:
      return ATTENTION, operations
    of_head = self.head in (lhs, rhs, output) or (
        self.head is not None and self.head[::-1] in (lhs, rhs, output))
    return (HEAD if of_head else WEIGHTS), operations


def _size(by_kind: dict[str, float]) -> float:
  return sum(by_kind.values())


def _open(jaxpr: Any):
  """Returns the jaxpr itself, closed or not."""
  return getattr(jaxpr, "jaxpr", jaxpr)


def _inner_jaxprs(name: str, params: dict):
  """Yields jaxprs that an equation runs once. A function with a custom derivative has several
  parameters, of which only the plain function runs here.
  """
  if name in ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"):
    yield _open(params.get("call_jaxpr", params.get("fun_jaxpr")))
    return
  if name.startswith(("reduce", "argmax", "argmin", "scatter", "sort", "cum")):
    return  # their jaxpr is the rule for two numbers
  for value in params.values():
    for entry in value if isinstance(value, (tuple, list)) else (value,):
      if hasattr(_open(entry), "eqns"):
        yield _open(entry)
