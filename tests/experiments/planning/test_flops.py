"""Operations of programs whose numbers a reader can work out."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from experiments.planning import flops, model_flops
from jaxrl_llm.config import ModelConfig, ParametersConfig, RolloutConfig
from jaxrl_llm.models import Model, trainable

X, W = jnp.ones((8, 16)), jnp.ones((5, 16, 16))
PRODUCT = 2 * 8 * 16 * 16


def layers(x, weights, body=jnp.matmul, inner=1):
  """Five layers; each is applied `inner` times, in a scan of its own."""

  def layer(x, weight):
    def again(x, _):
      return body(x, weight), None

    return lax.scan(again, x, None, length=inner)[0], None

  return lax.scan(layer, x, weights)[0].sum()


def counted(f, *args, **kwargs):
  return flops.count(jax.jit(f).trace(*args).jaxpr, **kwargs)


def ignoring_trips(f, *args):
  """A wrong counter: the body of each scan once."""
  seen = []

  def visit(jaxpr):
    for eqn in jaxpr.eqns:
      if eqn.primitive.name == "dot_general":
        seen.append(PRODUCT)
      for value in eqn.params.values():
        if hasattr(getattr(value, "jaxpr", value), "eqns"):
          visit(getattr(value, "jaxpr", value))

  visit(jax.jit(f).trace(*args).jaxpr.jaxpr)
  return sum(seen)


@pytest.mark.parametrize("inner", [1, 3])
def test_scans_are_multiplied_out(inner):
  f = functools.partial(layers, inner=inner)
  assert counted(f, X, W).once["weights"] == 5 * inner * PRODUCT
  assert ignoring_trips(f, X, W) != 5 * inner * PRODUCT


def test_a_gradient_costs_twice_the_forward_pass_and_remat_once_more():
  layer = lambda x, w: jnp.tanh(x @ w)
  for body, passes in ((layer, 3), (jax.checkpoint(layer), 4)):
    gradient = jax.grad(functools.partial(layers, body=body), (0, 1))
    assert counted(gradient, X, W).once["weights"] == passes * 5 * PRODUCT


def test_kinds():
  def f(x, head):
    scores = jnp.einsum("rd,red->re", x, jnp.ones((8, 7, 16)))
    return jnp.sort(x @ head, -1).sum() + scores.sum()

  count = counted(f, X, jnp.ones((16, 64)), head=(16, 64)).once
  assert count["head"] == 2 * 8 * 16 * 64
  assert count["attention"] == 2 * 8 * 7 * 16
  assert count["sort"] == 8 * 64 * 6
  assert "weights" not in count


def test_a_conditional_counts_one_branch():
  def f(x, w):
    return lax.cond(x.sum() > 0, lambda: layers(x, w), lambda: (x @ w[0]).sum())

  assert counted(f, X, W).once["weights"] == 5 * PRODUCT


def test_a_loop_of_unknown_trips_counts_per_trip():
  def f(x, w):
    def more(state):
      return jnp.all(state[0] < 1e6) & (state[1] < 9)

    x, _ = lax.while_loop(more, lambda s: (s[0] @ w[0] @ w[1], s[1] + 1), (x @ w[2], 0))
    return lax.while_loop(more, lambda s: (s[0] @ w[0], s[1] + 1), (x, 0))[0]

  count = counted(f, X, W)
  assert count.once["weights"] == PRODUCT
  assert [loop["weights"] for loop in count.loops] == [2 * PRODUCT, PRODUCT]
  assert count.total((9, 4))["weights"] == (1 + 2 * 9 + 4) * PRODUCT
  assert count.total()["weights"] == 4 * PRODUCT


def test_devices_inside_a_shard_map_are_added():
  mesh = Mesh(jax.devices()[:4], "data")
  rows = PartitionSpec("data")
  f = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(rows, PartitionSpec()),
                    out_specs=rows)
  assert counted(f, X, W[0]).once["weights"] == PRODUCT


def test_pairs_of_layers_with_a_window():
  for first, last in ((0, 9), (3, 9), (8, 9)):
    for window in (0, 1, 4, 20):
      expected = sum(min(i + 1, window or last) for i in range(first, last))
      assert model_flops.pairs_of(last, window) - model_flops.pairs_of(first, window) == expected
  full = ModelConfig(num_layers=3)
  mixed = dataclasses.replace(full, window=4, full_layers=(1,))
  alone = dataclasses.replace(mixed, full_layers=())
  counts = [model_flops.attention(m, 2, 30) for m in (full, mixed, alone)]
  assert counts[1] == pytest.approx(counts[0] / 3 + 2 * counts[2] / 3) and counts[2] < counts[0] / 3


def test_adapters_leave_the_gradients_of_matrices_out():
  """The formula's operations are those of the traced gradient, but for those of the adapters."""
  model = Model(ModelConfig(vocab_size=64, width=128, num_layers=2, num_heads=4, num_kv_heads=2,
                            head_dim=32, mlp_width=256, tie_head=False, remat="none"))
  sizes = RolloutConfig(max_prompt_tokens=1, max_new_tokens=15)
  tokens = jnp.zeros((4, 16), jnp.int32)
  positions = jnp.broadcast_to(jnp.arange(16), (4, 16))

  def of_weights(parameters):
    trained, frozen = trainable.split(model.init(jax.random.key(0)), parameters, jax.random.key(1))

    def loss(trained):
      params = trainable.with_adapters(trained, frozen, parameters)
      return jnp.sum(model.hidden(params, tokens, positions, jnp.ones_like(tokens))[0])

    return counted(jax.grad(loss), trained).once["weights"]

  def needed(adapters):
    total = model_flops.update(model.config, sizes, 4, adapters=adapters)
    heads = (2 if adapters else 3) * 4 * 2 * model_flops.head_weights(model.config) * 15
    return total - heads - 3 * 4 * model_flops.attention(model.config, 0, 16)

  assert of_weights(ParametersConfig()) == pytest.approx(needed(False), rel=0.1)
  assert of_weights(ParametersConfig("lora", lora_rank=1)) == pytest.approx(needed(True), rel=0.1)
  assert needed(True) < 0.7 * needed(False)
