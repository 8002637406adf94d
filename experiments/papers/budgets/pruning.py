"""Channels of the MLPs: how many each layer keeps under a budget, and which.

A channel is one column of `gate` and `up` and one row of `down`. Without its row of `down` it adds
nothing to the residual stream, so that a model with zeros there computes what a smaller one would.

Shapes: N layers, F channels of each.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.types import Params

BISECTIONS = 200
SATURATED = 60.0  # the sigmoid of this is 1 in float64


def project_to_budget(priorities: np.ndarray, widths: np.ndarray, budget: int,
                      least: int = 0) -> np.ndarray:
  """Returns how many channels each layer keeps, [N] int, with exactly `budget` in all.

    kept_l = least + (width_l - least) sigmoid(priority_l + shift)

  where one shift for all layers meets the budget. Fractions are then rounded down, and the layers
  with the largest fractions get one more each, the first of equal ones first. Adding a constant to
  all priorities changes nothing. Among layers of equal width, equal priorities keep the same number
  up to one channel, and a larger priority never keeps fewer. Own derivation; the authors'
  projection is `project_in_order`.

  Args:
    priorities: [N] float, finite; a larger one keeps more.
    widths: [N] int, channels that there are.
    budget: channels to keep.
    least: channels that each layer keeps in any case.

  Raises:
    ValueError: a priority is not finite, or the budget cannot be met.

  Source: arXiv 2511.18977 (the task of a projection that meets the budget).
  """
  priorities, widths = np.asarray(priorities, np.float64), np.asarray(widths, np.int64)
  if priorities.shape != widths.shape or not np.isfinite(priorities).all():
    raise ValueError(f"priorities = {priorities}: one finite number for each of {len(widths)} "
                     "layers is allowed. Fix: leave none out, and no NaN in.")
  low, high = np.minimum(least, widths).sum(), widths.sum()
  if not low <= budget <= high:
    raise ValueError(f"budget = {budget}: allowed are {low} to {high} channels. Fix: a budget "
                     "between them, or a smaller least.")
  floor = np.minimum(least, widths)
  low_shift, high_shift = -priorities.max() - SATURATED, -priorities.min() + SATURATED
  for _ in range(BISECTIONS):
    shift = (low_shift + high_shift) / 2
    if _shares(priorities + shift, floor, widths).sum() < budget:
      low_shift = shift
    else:
      high_shift = shift
  # The shift from above does not miss the budget, so that any gap is a rounding error.
  shares = _shares(priorities + high_shift, floor, widths)
  channels = np.floor(shares + 1e-9).astype(np.int64)
  order = np.lexsort((np.arange(len(channels)), -(shares - channels).round(9)))
  channels[order[:budget - channels.sum()]] += 1
  return channels


def project_in_order(scores: np.ndarray, widths: np.ndarray, budget: int, *, low: float = 0.1,
                     high: float = 1.0) -> np.ndarray:
  """Returns how many channels each layer keeps, [N] int, by the projection of the authors' code.

    share_l  = |score_l| inside [low, high]
    too few: share_l += deficit (high - share_l) / sum_k (high - share_k) width_k
    too many, from the first layer on: share_l = what the budget leaves after the layers before, if
             those after keep `low`; at least `low`

  Then shares are rounded to channels, at least one, and what rounding adds goes from the last
  layers. So the order of the layers matters, unlike in `project_to_budget`, and fewer channels than
  the budget may stay: at most half a channel for each layer.

  Args:
    scores: [N] float, what the policy samples; a larger one keeps more.
    widths, budget: as in `project_to_budget`.
    low, high: smallest and largest share of a layer.

  Source: arXiv 2511.18977, from its public code (structure_pruning, lib/ew_projector.py), with
  layers of equal cost per channel.
  """
  widths = np.asarray(widths, np.int64)
  shares = np.clip(np.abs(np.asarray(scores, np.float64)), low, high)
  surplus = (shares * widths).sum() - budget
  if surplus < 0:
    room = ((high - shares) * widths).sum()
    shares = np.clip(shares - surplus * (high - shares) / room, low, high) if room else shares
  elif surplus > 0:
    for layer, width in enumerate(widths):
      left = budget - (shares * widths)[:layer].sum() - low * widths[layer + 1:].sum()
      shares[layer] = max(min(shares[layer], left / width), low)
  channels = np.maximum(np.around(shares * widths).astype(np.int64), 1)
  smallest = np.maximum(np.around(low * widths).astype(np.int64), 1)
  for layer in range(len(widths) - 1, -1, -1):
    excess = min(channels.sum() - budget, channels[layer] - smallest[layer])
    channels[layer] -= max(excess, 0)
  return channels


def _shares(shifted: np.ndarray, floor: np.ndarray, widths: np.ndarray) -> np.ndarray:
  """Returns real numbers of channels, [N]; tanh does not overflow."""
  return floor + (widths - floor) * (1 + np.tanh(shifted / 2)) / 2


def channel_scores(params: Params, cfg: ModelConfig) -> np.ndarray:
  """Returns the product of the norms of each channel's three weight vectors, [N, F] float32.

  A weight-only measure of what a channel can write; it knows no data.

  Raises:
    ValueError: the blocks are stacked, or have experts.
  """
  norms = [[jnp.linalg.norm(mlp["gate"], axis=0), jnp.linalg.norm(mlp["up"], axis=0),
            jnp.linalg.norm(mlp["down"], axis=1)] for mlp in _mlps(params, cfg)]
  return np.asarray([gate * up * down for gate, up, down in norms])


def best_channels(scores: Float[np.ndarray, "N F"],
                  channels: np.ndarray) -> Bool[np.ndarray, "N F"]:
  """Returns which channels stay: in layer l the `kept[l]` with the largest scores."""
  place = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1, kind="stable")
  return place < np.asarray(channels)[:, None]


def masked(params: Params, cfg: ModelConfig, stay: Bool[Array, "N F"]) -> Params:
  """Returns the parameters with zeros for channels that do not stay; `stay` may be traced."""
  return _with_mlps(params, [
      mlp | {"down": jnp.where(stay[layer][:, None], mlp["down"], 0)}
      for layer, mlp in enumerate(_mlps(params, cfg))
  ])


def removed(params: Params, cfg: ModelConfig, stay: Bool[np.ndarray, "N F"]) -> Params:
  """Returns smaller parameters, without the channels that do not stay.

  Layers then have different widths. The network takes them as they are; `cfg.mlp_width` does not
  say them, so they cannot be written as a checkpoint of one width.
  """
  return _with_mlps(params, [
      {"gate": mlp["gate"][:, keep], "up": mlp["up"][:, keep], "down": mlp["down"][keep]}
      for keep, mlp in zip(np.asarray(stay), _mlps(params, cfg), strict=True)
  ])


def _mlps(params: Params, cfg: ModelConfig) -> list[Params]:
  if cfg.scan_layers or cfg.num_experts:
    raise ValueError(f"model.scan_layers = {cfg.scan_layers}, model.num_experts = "
                     f"{cfg.num_experts}: channels of unstacked dense MLPs only are pruned. Fix: "
                     "model.scan_layers=False and model.num_experts=0.")
  return [params["blocks"][layer]["mlp"] for layer in range(cfg.num_layers)]


def _with_mlps(params: Params, mlps: list[Params]) -> Params:
  blocks = {layer: params["blocks"][layer] | {"mlp": mlp} for layer, mlp in enumerate(mlps)}
  return params | {"blocks": blocks}
