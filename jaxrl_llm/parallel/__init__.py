"""Devices: the mesh, which arrays are divided over which axis, and transfers from host to device.

No other package asks for devices. Arrays are laid out by `NamedSharding` under `jax.jit`, and the
compiler inserts the collectives.

  meshes.py     which devices train, which sample, and which are in this process
  layouts.py    logical axes -> mesh axes, for parameters and activations
  crossings.py  `to_global`, `local_rows`, `gather_host` and the moves between sets of devices
"""

from jaxrl_llm.parallel.crossings import (
  gather_host,
  held_by,
  local_rows,
  spread,
  to_global,
  transfer,
)
from jaxrl_llm.parallel.layouts import (
  DECODING_RULES,
  RULES,
  Layout,
  param_shardings,
  replicated,
  rows,
  spec,
)
from jaxrl_llm.parallel.meshes import (
  AXES,
  apart,
  make_mesh,
  of_process,
  padded,
  per_engine,
  rollout_mesh,
  row_mesh,
  row_shards,
  slice_count,
  spans_processes,
  training_devices,
)

__all__ = ["AXES", "DECODING_RULES", "RULES", "Layout", "apart", "gather_host", "held_by",
           "local_rows", "make_mesh", "of_process", "row_mesh", "padded", "param_shardings",
           "per_engine", "replicated", "rollout_mesh", "row_shards", "rows", "slice_count",
           "spans_processes", "spec", "spread", "to_global", "training_devices", "transfer"]
