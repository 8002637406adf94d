"""Attention of full rows, as training and scoring need it: one function, several kinds of kernel.

`plain` computes the scores of all pairs. `blocked` computes them block by block, on any device.
`splash` (TPU), `cudnn` and `triton` (GPU) are kernels of JAX that do the same on chip. `auto`
chooses `plain` for short rows; for long ones the kernel of the device, or `blocked` where there is
none for the dtype.

Shapes: R rows, S tokens per row, H heads, K kv-heads, d head width.
"""

import functools
import logging
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from jaxrl_llm.config import ConfigError, ModelConfig
from jaxrl_llm.models.attention import LONG, attend_earlier

# The segments of a row, as errors call them.
ONE, PACKED, SHARED = "rows of one segment", "packed rows", "packed rows that share a prompt"


class Kernel(NamedTuple):
  """The platforms, dtypes and rows that a kernel serves, and whether it has sliding windows."""

  platform: str
  dtypes: tuple[str, ...]
  forms: tuple[str, ...]
  windows: bool = False


KERNELS = {
    "splash": Kernel("tpu", ("float32", "bfloat16"), (ONE, PACKED), windows=True),
    "cudnn": Kernel("gpu", ("bfloat16",), (ONE,)),
    "triton": Kernel("gpu", ("bfloat16",), (ONE, PACKED)),
}
_GPUS = ("gpu", "cuda", "rocm")
# Tokens of a row from which `auto` takes a kernel. At 896 tokens, the train step of
# configs/qwen25_0_5b_gsm8k.py moves 1.06 TB with splash, and 1.93 TB with `plain`.
KERNELS_FROM = 512
logger = logging.getLogger(__name__)


@struct.dataclass
class Rows:
  """Tokens that attend to the earlier ones of their segment, and to themselves.

  Attributes:
    segments: [R, S] int32, 0 at padding. A segment's tokens are neighbours in order.
    shared: [R, S] int32, an additional earlier segment that the token attends to (shared prompt);
      None: no token does.
    visible: [R, S, S] bool, True where a token (second axis) attends to another (third); None
      where the kind needs no such array.
    kind: how attention is computed.
    positions: [R, S] int32, of each token in its segment; None where no window asks for it.
    window: tokens of its segment that a token attends to, itself among them; 0: all.
  """

  segments: Int[Array, "R S"]
  shared: Int[Array, "R S"] | None
  visible: Bool[Array, "R S S"] | None
  kind: str = struct.field(pytree_node=False)
  positions: Int[Array, "R S"] | None = None
  window: int = struct.field(pytree_node=False, default=0)


def rows(segments: Int[Array, "R S"], cfg: ModelConfig, constrain, *, packed: bool,
         shared: Int[Array, "R S"] | None = None, positions: Int[Array, "R S"] | None = None,
         window: int = 0) -> Rows:
  """Returns what tokens attend to, with the kind of attention that the config asks for.

  Args:
    segments, shared: as in `Rows`.
    constrain: `parallel.Layout` of the devices; another function means JAX's default ones.
    packed: whether rows may hold several segments.
    positions: as in `Rows`, needed with a window.
    window: as in `Rows`; one of at least the row's length is none.

  Raises:
    ConfigError: `model.attention` cannot run on these devices, in this dtype, or on such rows.
  """
  form = ONE if not packed else PACKED if shared is None else SHARED
  window = window if window < segments.shape[1] else 0
  kind = choose(cfg, segments.shape[1], platform_of(constrain), form, window)
  positions = positions if window else None
  visible = _visible(segments, shared, positions, window) if kind == "plain" else None
  return Rows(segments, shared, visible, kind, positions, window)


def choose(cfg: ModelConfig, length: int, platform: str, form: str, window: int = 0) -> str:
  """Returns the kind of attention for rows of so many tokens; errors as `rows`.

  Args:
    platform: tpu, gpu or another one.
    form: ONE, PACKED or SHARED, the segments of a row.
    window: as in `Rows`.
  """
  kind, dtype = cfg.attention, cfg.compute_dtype
  if kind == "auto":
    kind = _automatic(dtype, length, platform, form, window)
  elif kind in KERNELS:
    _check_kernel(kind, dtype, platform, form, window)
  _log_once(f"attention in rows of {length} tokens: {kind} (model.attention={cfg.attention}, "
            f"{platform}, {dtype})")
  return kind


def check(cfg: ModelConfig, platform: str) -> None:
  """Refuses a kernel that these devices or this dtype do not have.

  Args:
    platform: of the devices, as JAX calls it.

  Raises:
    ConfigError: naming `model.attention`.
  """
  if cfg.attention in KERNELS:
    _check_kernel(cfg.attention, cfg.compute_dtype, "gpu" if platform in _GPUS else platform,
                  window=cfg.window)


def _automatic(dtype: str, length: int, platform: str, form: str, window: int) -> str:
  for kind, kernel in KERNELS.items():
    is_served = kernel.platform == platform and dtype in kernel.dtypes and form in kernel.forms
    if is_served and length >= KERNELS_FROM and (kernel.windows or not window):
      return kind
  return "plain" if length < LONG else "blocked"


def _check_kernel(kind: str, dtype: str, platform: str, form: str = "", window: int = 0) -> None:
  kernel = KERNELS[kind]
  if kernel.platform != platform:
    raise ConfigError(f"model.attention = {kind!r} on {platform}: its kernel needs a "
                      f"{kernel.platform.upper()}. Fix: model.attention=auto.")
  if dtype not in kernel.dtypes:
    raise ConfigError(f"model.attention = {kind!r} with model.compute_dtype = {dtype!r}: allowed "
                      f"are {', '.join(kernel.dtypes)}. Fix: model.attention=auto.")
  if form and form not in kernel.forms:
    raise ConfigError(f"model.attention = {kind!r}: its kernel serves {', '.join(kernel.forms)}, "
                      f"not {form}. Fix: model.attention=auto.")
  if window and not kernel.windows:
    raise ConfigError(f"model.attention = {kind!r} with model.window = {window}: its kernel has no "
                      "sliding window. Fix: model.attention=auto.")


def attend_rows(queries, keys, values, visible: Rows, constrain):
  """Grouped-query attention of full rows: H / K query heads share a kv-head.

  Args:
    queries: [R, S, H, d].
    keys: [R, K, d, S].
    values: [R, K, S, d].
    visible: what the tokens attend to.
    constrain: as in `rows`. Kernels run on each device's own rows and heads.

  Returns:
    [R, S, H, d] in the dtype of the queries; at padding it means nothing, and it is finite.
  """
  if visible.kind == "plain":
    return attend_earlier(queries, keys, values, visible.visible)
  from jaxrl_llm.models import attention_kernels, blocked_attention  # short rows need none of them

  run = blocked_attention.attend_blocks
  if visible.kind != "blocked":
    run = getattr(attention_kernels, visible.kind)
  if visible.window:
    run = functools.partial(run, window=visible.window)
  shape, kv_heads = queries.shape, keys.shape[1]
  # Heads go first while they are one axis: a TPU's compiler copies a transpose of five axes.
  by_kv_head = queries.swapaxes(1, 2).reshape(shape[0], kv_heads, -1, shape[1], shape[3])
  heads = ("rows", "attending_heads", None, None)
  per_token = (visible.segments,) if visible.shared is None else (visible.segments, visible.shared)
  if visible.window and visible.kind == "blocked":
    per_token = visible.segments, per_token[-1], visible.positions
  arrays = (by_kv_head, keys.swapaxes(2, 3), values, *per_token)
  axes = ((*heads, None), heads, heads, *[("rows", None)] * len(per_token))
  out = _by_shard(constrain)(run, arrays, axes)
  return out.reshape(shape[0], -1, shape[1], shape[3]).swapaxes(1, 2)


def _visible(segments, shared, positions=None, window: int = 0) -> Bool[Array, "R S S"]:
  columns = jnp.arange(segments.shape[1])
  kv_segments, q_segments = segments[:, None], segments[..., None]
  of_segment = kv_segments == q_segments
  if shared is not None:
    of_segment |= kv_segments == shared[..., None]
  if window:
    of_segment &= positions[..., None] - positions[:, None] < window
  return (columns <= columns[:, None]) & of_segment & (q_segments > 0)


def platform_of(constrain) -> str:
  """Returns tpu, gpu or another platform: a `parallel.Layout`'s, else JAX's default one."""
  platform = getattr(constrain, "platform", None) or jax.default_backend()
  return "gpu" if platform in _GPUS else platform


def _by_shard(constrain):
  """Returns the layout's `by_shard`; a model without a layout computes everything in one place."""
  return getattr(constrain, "by_shard", lambda function, arrays, axes: function(*arrays))


@functools.cache
def _log_once(message: str) -> None:
  logger.info(message)
