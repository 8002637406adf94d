"""How a decode step reads the cache: by a kernel of live blocks, or a window of columns.

`kernel` reads the blocks in which a row has tokens (models/live_attention.py), one program for any
rows. `windowed` copies, for each chunk, the columns up to the longest row's end, and reads all of
them; no kernel is needed. Where a layer has a sliding window (`model.window`), both read only its
columns: in whole blocks, or with room for a chunk. Before a run's first use of the kernel its
device compares the two.
"""

import logging

from jaxrl_llm.config import ConfigError
from jaxrl_llm.models import Model, kv_cache, live_attention

AUTO, KERNEL, WINDOWED = "auto", "kernel", "windowed"
logger = logging.getLogger(__name__)


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
  if kind == WINDOWED or (kind == AUTO and (device.platform != "tpu" or not side)):
    return 0
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
    window = block // 2 + 3 if cfg.window else 0  # of which the long row's does not begin a block
    difference = live_comparison.difference(shapes, block, device, window)
  if difference <= live_comparison.LARGEST:
    return side
  logger.warning("rollout.decode_attention: on %s the kernel differs from the reference by %.2g, "
                 "so the run goes on windowed", device, difference)
  return 0
