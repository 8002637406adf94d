"""What every estimator must satisfy; each check raises AssertionError for one that does not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_llm.config import AggregationConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.objective.aggregation import loss_weights

# In the transpose of the linearised loss: nothing that moves a number from one token to another.
LOCAL = {
    "mul", "neg", "add_any", "add", "select_n", "convert_element_type", "broadcast_in_dim",
    "reduce_sum", "reshape", "squeeze", "transpose", "copy", "copy_p", "div", "sub",
    "stop_gradient", "zeros_like", "full_like", "jit", "pjit", "closed_call", "integer_pow", "sign"
}


@dataclasses.dataclass(frozen=True)
class Case:
  """Rows of different lengths with holes, one row of a single token, one row without any.

  The last six are the columns that some estimators read; a turn ends at a hole. Groups are
  unsorted, and split by every micro-batch; one has a single row with tokens.
  """

  log_probs: np.ndarray
  anchor: np.ndarray
  advantages: np.ndarray
  mask: np.ndarray
  row_id: np.ndarray
  turn_id: np.ndarray
  entropy: np.ndarray
  recomputed_log_probs: np.ndarray
  group_id: np.ndarray
  ref_log_probs: np.ndarray

  def on_policy(self):
    return dataclasses.replace(self, anchor=self.log_probs, recomputed_log_probs=self.log_probs)

  def rows(self, index):
    return Case(*(x[index] for x in vars(self).values()))

  def floats(self, change):
    """The case with `change` applied to each [B, L] array of floats."""
    return dataclasses.replace(
        self, **{k: change(x) for k, x in vars(self).items() if x.ndim == 2 and x.dtype.kind == "f"}
    )

  def arrays(self):
    """The four arrays that every estimator takes."""
    return tuple(map(jnp.asarray, (self.log_probs, self.anchor, self.advantages, self.mask)))

  def columns(self, cfg):
    """The columns that the estimator of `cfg` reads."""
    return {name: jnp.asarray(getattr(self, name)) for name in estimators.required(cfg)}


def case(seed=0, rows=8, length=12, drift=0.3, token_advantages=True) -> Case:
  rng = np.random.default_rng(seed)
  log_probs = -rng.exponential(1.0, (rows, length)).astype(np.float32)
  anchor = (log_probs + drift * rng.standard_normal((rows, length))).astype(np.float32)
  start, end = rng.integers(0, 3, rows), rng.integers(5, length + 1, rows)
  mask = (np.arange(length) >= start[:, None]) & (np.arange(length) < end[:, None]) & (rng.random(
      (rows, length)) < 0.8)
  mask[-1] = False
  mask[-2] = np.arange(length) == 4
  advantages = rng.standard_normal((rows, length if token_advantages else 1)) * np.ones((1, length))
  starts = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
  entropy = rng.uniform(0, 2, mask.shape).astype(np.float32)
  near = (log_probs + drift / 2 * rng.standard_normal(mask.shape)).astype(np.float32)
  return Case(log_probs, anchor, advantages.astype(np.float32), mask,
              (7 * np.arange(rows) + 100 * seed).astype(np.int32),
              np.where(mask, np.cumsum(starts, 1), 0).astype(np.int32), entropy, near,
              np.resize(np.array([5, -2, -2, 5, 5, 9, -2, 9]), rows).astype(np.int32),
              (log_probs + drift / 4 * rng.standard_normal(mask.shape)).astype(np.float32))


def weighted(estimator, cfg, c: Case, weights=None, prepared=None):
  """(loss, gradient in log_probs) with token weights, and statistics, of the whole batch."""
  weights = token_weights(c) if weights is None else weights
  prepared = {} if prepared is None else {"weights": jnp.asarray(prepared)}
  further = prepared | c.columns(cfg)

  def loss(log_probs):
    out = estimator(log_probs, *c.arrays()[1:], cfg, **further)
    return jnp.sum(weights * jnp.where(c.mask, out.per_token_loss, 0))

  value, gradient = jax.value_and_grad(loss)(jnp.asarray(c.log_probs))
  return np.asarray(value), np.asarray(gradient)


def token_weights(c: Case):
  return np.asarray(loss_weights(jnp.asarray(c.mask), None, None, AggregationConfig("token")))


def close(got, expected, what, tolerance=2e-5):
  np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=what)


def same(got, expected, what):
  """Compares losses and gradients, as `weighted` returns them."""
  close(got[0], expected[0], f"{what} changes the loss")
  close(got[1], expected[1], f"{what} changes the gradient")


def check_on_policy(estimator, cfg):
  """With the anchor as policy the gradient is REINFORCE's, or what the entry declares instead."""
  c = case(1).on_policy()
  _, gradient = weighted(estimator, cfg, c)
  coefficient, entry = c.advantages, estimators.spec(cfg.name)
  if entry.on_policy is not None:
    weights = prepared(estimators.get_estimator(cfg.name), cfg, c)
    log_probs, _, advantages, mask = c.arrays()
    coefficient = np.asarray(entry.on_policy(log_probs, advantages, mask, estimators.resolve(cfg),
                                             weights))
  close(gradient, -token_weights(c) * coefficient,
        "on-policy, the gradient is neither REINFORCE's nor the declared one")


def check_padding(estimator, cfg):
  c = case(2)
  value, gradient = weighted(estimator, cfg, c)
  garbage = np.random.default_rng(0).choice([np.nan, np.inf, -np.inf, 1e30, -7.0],
                                            c.mask.shape).astype(np.float32)
  dirty = c.floats(lambda x: np.where(c.mask, x, garbage))
  same(weighted(estimator, cfg, dirty), (value, gradient), "garbage under a False mask")
  pad = lambda x, fill: np.pad(x, ((0, 0), (0, 5)), constant_values=fill)
  longer = dataclasses.replace(
      c.floats(lambda x: pad(x, 2.0)), log_probs=pad(c.log_probs, -3.0),
      advantages=pad(c.advantages, 9.0), mask=pad(c.mask, False), turn_id=pad(c.turn_id, 1))
  same(weighted(estimator, cfg, longer), (value, pad(gradient, 0.0)), "padding")


def check_holes(estimator, cfg):
  """Masked tokens in the middle count for nothing: rows of policy tokens alone give the same."""
  c = case(3)
  order = np.argsort(~c.mask, axis=1, kind="stable")
  squeezed = Case(*(np.take_along_axis(x, order, 1) if x.ndim == 2 else x
                    for x in vars(c).values()))
  value, gradient = weighted(estimator, cfg, c)
  same(weighted(estimator, cfg, squeezed), (value, np.take_along_axis(gradient, order, 1)),
       "a hole in the mask")


def check_row_order(estimator, cfg):
  c = case(4)
  order = np.random.default_rng(0).permutation(len(c.mask))
  value, gradient = weighted(estimator, cfg, c)
  same(weighted(estimator, cfg, c.rows(order)), (value, gradient[order]), "row order")


def prepared(estimator, cfg, c: Case):
  """What an estimator with batch statistics computes on the whole batch; None for any other."""
  if getattr(estimator, "prepare", None) is None:
    return None
  return np.asarray(estimator.prepare(*c.arrays(), cfg, **c.columns(cfg)))


def check_micro_batches(estimator, cfg):
  """What is made of the whole batch first is its declared statistics, and nothing else."""
  c = case(5)
  value, gradient = weighted(estimator, cfg, c)
  weights = prepared(estimator, cfg, c)
  for parts in (2, 4):
    split = [weighted(estimator, cfg, c.rows(slice(i, None, parts)), token_weights(c)[i::parts],
                      None if weights is None else weights[i::parts]) for i in range(parts)]
    close(sum(v for v, _ in split), value, f"{parts} micro-batches change the loss")
    for i, (_, g) in enumerate(split):
      close(g, gradient[i::parts], f"{parts} micro-batches change the gradient")


def check_devices(estimator, cfg):
  c = case(6)
  mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
  rows = NamedSharding(mesh, PartitionSpec("data"))
  weights = jnp.asarray(token_weights(c))

  def loss(log_probs, anchor, advantages, mask, weights, columns):
    out = estimator(log_probs, anchor, advantages, mask, cfg, **columns)
    return jnp.sum(weights * jnp.where(mask, out.per_token_loss, 0))

  arrays = (*c.arrays(), weights, c.columns(cfg))
  run = jax.jit(jax.value_and_grad(loss), in_shardings=rows)
  same(run(*jax.device_put(arrays, rows)), weighted(estimator, cfg, c),
       "8 devices, or jit instead of eager,")


def check_masked(estimator, cfg):
  c = case(7)
  _, gradient = weighted(estimator, cfg, c)
  close(gradient[~c.mask], 0.0, "a masked token has a gradient", 0)
  out = estimator(*c.arrays(), cfg, **c.columns(cfg))
  assert np.all(np.isfinite(out.per_token_loss)), "per_token_loss is not finite everywhere"
  nothing = dataclasses.replace(c, mask=np.zeros_like(c.mask))
  value, gradient = weighted(estimator, cfg, nothing)
  close(value, 0.0, "a fully masked batch has a loss", 0)
  close(gradient, 0.0, "a fully masked batch has a gradient", 0)


def check_extremes(estimator, cfg):
  c = case(8)
  for size in (50.0, -50.0):
    alternating = size * np.where(np.arange(c.mask.shape[1]) % 3 == 0, -1, 1)
    for shift in (size, alternating):
      far = dataclasses.replace(c, anchor=(c.log_probs - shift).astype(np.float32))
      value, gradient = weighted(estimator, cfg, far)
      _check_finite(value, gradient, size)
  for size in (1e4, -1e4):  # as log-probs can be: one of the two is far below
    far = {"anchor" if size > 0 else "log_probs": (c.log_probs - abs(size)).astype(np.float32)}
    _check_finite(*weighted(estimator, cfg, dataclasses.replace(c, **far)), size)


def _check_finite(value, gradient, size):
  assert np.isfinite(value) and np.all(
      np.isfinite(gradient)), f"log-ratios of {size} are not finite"


def check_zero_advantage(estimator, cfg):
  c = case(9)
  _, gradient = weighted(estimator, cfg,
                         dataclasses.replace(c, advantages=np.zeros_like(c.advantages)))
  close(gradient, 0.0, "zero advantages have a gradient", 0)


def check_constant_anchor(estimator, cfg):
  """The anchor is a constant, whoever computes it, even from the parameters being trained."""
  c = case(12)
  rest = [jnp.asarray(x) for x in (c.advantages, c.mask)]

  def loss(anchor):
    out = estimator(jnp.asarray(c.log_probs), anchor, *rest, cfg, **c.columns(cfg))
    return jnp.sum(out.per_token_loss)

  close(jax.grad(loss)(jnp.asarray(c.anchor)), 0.0, "the anchor has a gradient", 0)


def check_full_precision(estimator, cfg):
  """bf16 inputs are computed in f32: same as rounding the inputs first."""
  c = case(10)
  half = lambda x: jnp.asarray(x, jnp.bfloat16)
  rounded = lambda x: half(x).astype(jnp.float32)
  mask = jnp.asarray(c.mask)
  columns = c.floats(lambda x: np.asarray(rounded(x))).columns(cfg)
  got = estimator(half(c.log_probs), half(c.anchor), rounded(c.advantages), mask, cfg,
                  **columns).per_token_loss
  expected = estimator(rounded(c.log_probs), rounded(c.anchor), rounded(c.advantages), mask, cfg,
                       **columns).per_token_loss
  assert got.dtype == jnp.float32, f"per_token_loss is {got.dtype}"
  close(got, expected, "bf16 inputs are not computed in f32", 1e-6)


def check_local_gradient(estimator, cfg):
  """Linearised in log_probs, the transpose has only elementwise operations and reductions."""
  c = case(11)

  rest = [jnp.asarray(x) for x in (c.anchor, c.advantages, c.mask)]
  columns = c.columns(cfg)
  _, transpose = jax.vjp(lambda x: estimator(x, *rest, cfg, **columns).per_token_loss,
                         jnp.asarray(c.log_probs))
  primitives = set()
  _collect(jax.make_jaxpr(transpose)(jnp.ones(c.mask.shape)).jaxpr, primitives)
  assert primitives <= LOCAL, f"the gradient flows through {sorted(primitives - LOCAL)}"


def _collect(jaxpr, primitives):
  for equation in jaxpr.eqns:
    primitives.add(equation.primitive.name)
    for value in equation.params.values():
      for inner in value if isinstance(value, (tuple, list)) else (value,):
        if hasattr(inner, "jaxpr"):
          _collect(inner.jaxpr, primitives)
        elif hasattr(inner, "eqns"):
          _collect(inner, primitives)


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items())
          if name.startswith("check_")}
