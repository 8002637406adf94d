"""The module that predicts two tokens ahead (multi-token prediction, MTP), one layer deep.

At column t it reads the trunk's last hidden state, which has seen the tokens up to t, and the
embedding of token t + 1. Their norms are joined and projected to the width. One block and the
module's own norm follow; the output head is the policy's. The result predicts token t + 2.

Source: DeepSeek-V3, arXiv 2412.19437, section 2.2, with one module.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models.layers import multiply, weight, width_norm

NAME = "mtp"  # the key of its parameters, next to the trunk's


class MtpModule(nnx.Module):
  """A module for multi-token prediction: norms and projection around one block.

  Args:
    block: of the same kind as the trunk's last one.
  """

  def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs, block: nnx.Module):
    self.state_norm = width_norm(cfg)
    self.token_norm = width_norm(cfg)
    self.projection = weight(rngs, (2 * cfg.width, cfg.width), ("joined", "embed"))
    self.block = block
    self.norm = width_norm(cfg)

  def join(self, hidden: Float[Array, "R S D"], following: Float[Array, "R S D"],
           constrain) -> Float[Array, "R S D"]:
    """Returns the block's input, from the trunk's states and the embeddings of the following
    tokens.
    """
    features = jnp.concatenate([self.state_norm(hidden), self.token_norm(following)], -1)
    return constrain(multiply(features, self.projection, constrain),
                     ("rows", "length", "embed_activation"))


def without(params: dict) -> dict:
  """Returns the parameters that sampling reads: all but the module's."""
  return {name: x for name, x in params.items() if name != NAME}
