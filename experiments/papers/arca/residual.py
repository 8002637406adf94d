"""The column `adapter_residual`: how far the adapters move the last hidden states."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from experiments.tables_lib.residual_stream import hidden_states
from jaxrl_llm import register
from jaxrl_llm.config import ConfigError, ParametersConfig, StepConfig
from jaxrl_llm.models import Model
from jaxrl_llm.ops import bins as bins_lib
from jaxrl_llm.training.columns import BASE, CURRENT, ColumnParts
from jaxrl_llm.training.packing import Packing
from jaxrl_llm.training.score import in_pieces
from jaxrl_llm.types import Bins, Params, Rollout, Sampling

COLUMN = "adapter_residual"


def state_distance(params, other_params, rows: Rollout, *, model: Model, normed: bool,
                   bins: Bins | None) -> Float[Array, "B L"]:
  """Returns || h - h' ||, f32, of the last hidden states that predict each token, without gradient.

  Entry 0 is 0, and so is all that is after a row's end in bins.

  Args:
    params, other_params: of `model`; h is the state under the first ones, h' under the others.
    normed: takes the states after the final norm, as the head reads them; False: before it.
    bins: how the rows are packed for the network; None: each is fed as it is.
  """
  width, sharing = rows.tokens.shape[1], {}
  if bins is None:
    model = getattr(model, "of_single_segments", model)
    positions = jnp.broadcast_to(jnp.arange(width), rows.tokens.shape)
    inputs = (rows.tokens, positions, (positions < rows.length[:, None]).astype(jnp.int32))
  else:
    placement = bins_lib.places(rows.length, width, bins)
    inputs = (bins_lib.pack(rows.tokens, placement), placement.positions, placement.segments)
    sharing = {} if placement.shared is None else {"shared": placement.shared}

  def state(params):
    if normed:
      return model.hidden(params, *inputs, **sharing)[0].astype(jnp.float32)
    columns = jnp.broadcast_to(jnp.arange(inputs[0].shape[1]), inputs[0].shape)
    last = (model.config.num_layers,)
    return hidden_states(model, params, *inputs, columns, last, **sharing)[0].astype(jnp.float32)

  distance = jnp.linalg.norm(state(params) - state(other_params), axis=-1)
  distance = distance if bins is None else bins_lib.unpack(distance, placement)
  return lax.stop_gradient(jnp.pad(distance[:, :-1], ((0, 0), (1, 0))))


def adapter_residual(policies: tuple[Params, Params], rollout: Rollout, *, model: Model,
                     cfg: StepConfig, normed: bool, packing: Packing | None = None) -> Array:
  """Returns `state_distance` [B, L] of a rollout between the parameters with and without their
  adapters.

  Args:
    policies: parameters of `model`, with the adapters merged and without them.
    rollout, cfg, packing: as in `score`.
    normed: see `state_distance`.
  """

  def run(rows: Rollout, bins: Bins | None = None) -> Array:
    return state_distance(*policies, rows, model=model, normed=normed, bins=bins)

  return in_pieces(run, rollout, packing, model, cfg)


def _exact(model: Model) -> Model:
  """Returns the model in float32: until adapters have grown, bfloat16 rounds what they change to
  noise.
  """
  if model.config.compute_dtype == "float32":
    return model
  config = dataclasses.replace(model.config, compute_dtype="float32", attention="auto")
  return dataclasses.replace(model, config=config)


def check(parameters: ParametersConfig, reader: str) -> None:
  """Refuses a run without adapters; `reader` says what reads the column."""
  if parameters.train != "lora":
    raise ConfigError(
        f"parameters.train = {parameters.train!r}: {reader} reads what adapters change of the "
        "hidden states, and this run has none. Fix: parameters.train=lora.")


@register.column(COLUMN, reads=(CURRENT, BASE), program="score_residual", check=check)
def column(parts: ColumnParts) -> Callable[..., Array]:
  """Norms || h - h_base || of the state that predicts each token, f32, without gradient.

  Source: arXiv 2606.00257; which state is taken is unconfirmed there (`hidden_state`).
  """
  normed = getattr(parts.numbers, "hidden_state", "normed") == "normed"
  model = _exact(parts.model)

  def residual(params: Params, base: Params, rollout: Rollout, sampling: Sampling, *,
               packing: Packing | None = None) -> Array:
    del sampling
    return adapter_residual((params, base), rollout, model=model, cfg=parts.cfg, normed=normed,
                            packing=packing)

  return residual
