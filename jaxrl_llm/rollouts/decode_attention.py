"""How a decode step reads the cache: by a kernel of live blocks, or a window of columns.

`kernel` reads the blocks in which a row has tokens (models/live_attention.py), one program for any
rows. `windowed` copies, for each chunk, the columns up to the longest row's end, and reads all of
them; no kernel is needed. Before a run's first use of the kernel its device compares the two.
"""

import logging

from jaxrl_llm.config import ConfigError
from jaxrl_llm.models import Model, kv_cache, live_attention

AUTO, KERNEL, WINDOWED = "auto", "kernel", "windowed"
logger = logging.getLogger(__name__)


def check(kind: str, window: int) -> None:
  """Raises ConfigError if the kernel is asked for and layers have a sliding window."""
  if kind == KERNEL and window:
    raise ConfigError(f"rollout.decode_attention = kernel with model.window = {window}: the "
                      "kernel has no sliding window. Fix: rollout.decode_attention=auto.")


def heads_side_by_side(kind: str, model: Model, columns: int, compare: bool = True) -> int:
  """Returns how many heads the cache has side by side for the kernel; 0: the window is read.

  Args:
    kind: auto, kernel or windowed.
    model: as it decodes; its layout says on which devices.
    columns: of the cache.
    compare: whether the device may be asked for the comparison.

  Raises:
    ConfigError: the kernel is asked for, and does not serve these heads.
  """
  cfg, device = model.config, live_attention.device_of(model.constrain)
  side = live_attention.side_by_side(cfg.head_dim, cfg.num_kv_heads)
  if kind == WINDOWED or (kind == AUTO and (device.platform != "tpu" or not side or cfg.window)):
    return 0
  check(kind, cfg.window)
  if not side:
    raise ConfigError(
        f"rollout.decode_attention = kernel with {cfg.num_kv_heads} key-value heads of "
        f"{cfg.head_dim}: allowed are widths of a multiple of 128, or as many heads as fill it. "
        "Fix: rollout.decode_attention=auto.")
  from jaxrl_llm.models import live_comparison  # of runs with the kernel

  shapes = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim, kv_cache.dtype(cfg).name
  difference = 0.0
  if compare:
    block = live_attention.block_of(columns, kv_cache.dtype(cfg))
    difference = live_comparison.difference(shapes, block, device)
  if difference <= live_comparison.LARGEST:
    return side
  logger.warning("rollout.decode_attention: on %s the kernel differs from the reference by %.2g, "
                 "so the run goes on windowed", device, difference)
  return 0
