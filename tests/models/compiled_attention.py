"""Prints the bytes of temporaries of attention in one long row, forward and backward, compiled for
a target: python tests/models/compiled_attention.py v5p:2x2x1 splash
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp

from experiments.planning import targets
from jaxrl_llm.models.row_attention import Rows, attend_rows

LENGTH, HEADS, KV_HEADS, SIZE = 32768, 32, 8, 128


def temporaries(target: str, kind: str) -> int:
  described = targets.describe(target)
  where = jax.sharding.SingleDeviceSharding(described.devices[0])

  def given(shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

  def loss(queries, keys, values, segments):
    mixed = attend_rows(queries, keys, values, Rows(segments, None, None, kind), None)
    return jnp.sum(mixed.astype(jnp.float32))

  traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(
      given((1, LENGTH, HEADS, SIZE)), given((1, KV_HEADS, SIZE, LENGTH)),
      given((1, KV_HEADS, LENGTH, SIZE)), given((1, LENGTH), jnp.int32))
  compiled = traced.lower(lowering_platforms=(described.chip.platform,)).compile()
  return compiled.memory_analysis().temp_size_in_bytes


if __name__ == "__main__":
  print(temporaries(*sys.argv[1:]))
