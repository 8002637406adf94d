"""The residual stream of a network between its blocks, for probes and lenses."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxrl_llm.models import Model, kv_cache
from jaxrl_llm.models.transformer import Places


def hidden_states(model: Model, params, inputs: Array, positions: Int[Array, "R S"],
                  segments: Int[Array, "R S"], columns: Int[Array, "R P"],
                  layers: tuple[int, ...], *, shared: Int[Array, "R S"] | None = None,
                  ) -> Float[Array, "K R P D"]:
  """Returns the residual stream at chosen layers and columns, before any final norm.

  Args:
    model: of `params`.
    params, inputs, positions, segments, shared: as in `Model.hidden`.
    columns: [R, P], of each row. Only these are kept of a layer.
    layers: K of them; 0 is the embedding, n what block n leaves, and N what the final norm reads.

  Raises:
    ValueError: a layer does not exist.
  """
  last = model.config.num_layers
  bad = [layer for layer in layers if not 0 <= layer <= last]
  if bad or not layers:
    raise ValueError(f"layers = {layers}: allowed are 0 (the embedding) to {last}. Fix: "
                     f"{f'leave out {bad[0]}' if bad else 'name one'}.")
  network = model.network(params)
  places = Places(positions, segments, model.packed, shared)
  visible = network.visible(places, model.constrain)
  x = network.embedded(inputs, model.constrain)
  states = [x]
  for block, window in zip(_blocks(network), kv_cache.windows(model.config), strict=True):
    x, _ = block(x, positions, visible[window], None, None, model.constrain)
    states.append(x)
  return jnp.stack([jnp.take_along_axis(states[n], columns[..., None], axis=1) for n in layers])


def _blocks(network) -> list:
  """Returns the blocks one by one, also where they are stacked."""
  if not network.cfg.scan_layers:
    return list(network.blocks)
  graph, stacked = nnx.split(network.blocks)
  return [nnx.merge(graph, jax.tree.map(lambda leaf, n=n: leaf[n], stacked))
          for n in range(network.cfg.num_layers)]


def normed(model: Model, params, states: Float[Array, "... D"]) -> Float[Array, "... D"]:
  """Returns the final norm of states; of layer N, what `Model.hidden` returns."""
  return model.network(params).final_norm(states)
