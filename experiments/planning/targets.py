"""Accelerators that programs are compiled for, where none is at hand, and their published peaks."""

import dataclasses
import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError

TPU, GPU = "tpu", "cuda"


@dataclasses.dataclass(frozen=True)
class Chip:
  """One device, by its vendor's published figures (1 GB = 1e9 bytes).

  Attributes:
    platform: TPU or GPU, as JAX calls it.
    flops: matrix products in bf16, per second.
    memory: bytes.
    bandwidth: of the memory, bytes per second.
    interconnect: bytes per second between devices. For a TPU all links together, for a GPU one way.
    network: bytes per second between slices of TPUs, one device's share of its host's, one way.
    source: where the figures are published.
  """

  platform: str
  flops: float
  memory: float
  bandwidth: float
  interconnect: float
  network: float
  source: str


CHIPS = {
    "v5e": Chip(TPU, 197e12, 16e9, 819e9, 200e9, 3.125e9, "cloud.google.com/tpu/docs/v5e"),
    "v5p": Chip(TPU, 459e12, 95e9, 2765e9, 600e9, 6.25e9, "cloud.google.com/tpu/docs/v5p"),
    "v6e": Chip(TPU, 918e12, 32e9, 1640e9, 448e9, 12.5e9, "cloud.google.com/tpu/docs/v6e"),
    "h100": Chip(GPU, 989e12, 80e9, 3350e9, 450e9, 450e9, "NVIDIA H100 SXM data sheet"),
    "h200": Chip(GPU, 989e12, 141e9, 4800e9, 450e9, 450e9, "NVIDIA H200 SXM data sheet"),
}
# The compiler's description of a GPU: processors, bytes of memory, bytes per second.
_GPUS = {
    "h100": (132, 84_942_979_072, 3_352_320_000_000),
    "h200": (132, 150_000_000_000, 4_800_000_000_000),
}
# Devices as JAX names them. Boards of the same name with other peaks, such as "NVIDIA H100 PCIe",
# are not listed.
_KINDS = {
    "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p",
    "TPU v6 lite": "v6e", "TPU v6e": "v6e", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200",
}
_DIMENSIONS = {"v5e": 2, "v5p": 3, "v6e": 2}
# Devices of the largest slice that is sold, and of the largest machine, with room for later ones:
# without a bound their description is minutes of work.
_LARGEST = {"v5e": 256, "v5p": 8960, "v6e": 256, "h100": 1024, "h200": 1024}
_MOST_SLICES = 1024
_SMALLEST = {"v5e": "2x2", "v5p": "2x2x1", "v6e": "2x2"}  # whose first device represents one chip
FORMAT = ("v5p:4x4x4 (three sides), v5e:4x4 or v6e:4x4 (two sides), v5e:1 (one chip), h100:8 or "
          "h200:8 (GPUs of one machine), v5p:2x2x2*2 (two slices of TPUs)")


@dataclasses.dataclass(frozen=True)
class Target:
  """A slice or machine to compile for.

  Attributes:
    name: such as `v5p:4x4x4`.
    chip: its devices' figures.
    devices: described ones; no array can be put on them.
  """

  name: str
  chip: Chip
  devices: tuple

  @property
  def slices(self) -> int:
    """Slices of TPUs over which the devices are spread."""
    return parallel.slice_count(self.devices)


def chip_of(device_kind: str) -> Chip | None:
  """Returns the figures of a device by its `device_kind`; None if they are not known here."""
  return CHIPS.get(_KINDS.get(device_kind, ""))


def describe(name: str) -> Target:
  """Returns the target of this name, without looking for devices of this machine.

  Raises:
    ConfigError: the name is no target, or the compiler for it is not installed.
  """
  kind, shape, slices = parse(name)
  chip = CHIPS[kind]
  jax.config.update("jax_platforms", "cpu")  # else JAX would look for an accelerator here
  # A program's compilation time is a result, so it must not come from a cache.
  jax.config.update("jax_enable_compilation_cache", False)
  devices = _tpus(name, kind, shape, slices) if chip.platform == TPU else _gpus(kind, shape)
  return Target(name, chip, devices)


def parse(name: str) -> tuple[str, tuple[int, ...], int]:
  """Returns (kind, sides or number of devices, number of slices) of a target's name.

  Raises:
    ConfigError: the name is no target.
  """
  match = re.fullmatch(r"([a-z0-9]+):(\d{1,1000}(?:x\d{1,1000})*)(?:\*(\d{1,1000}))?", name or "")
  kind, shape = (match[1], tuple(map(int, match[2].split("x")))) if match else ("", ())
  sides = {1, _DIMENSIONS.get(kind, 1)}
  slices = int(match[3] or 1) if match else 1
  several_in_a_line = kind in _DIMENSIONS and len(shape) == 1 and shape != (1,)
  if kind not in CHIPS or len(shape) not in sides or several_in_a_line or 0 in shape or (
      slices != 1 and (slices < 1 or kind not in _DIMENSIONS or shape == (1,))):
    raise ConfigError(f"--target={name}: no target. Allowed are {FORMAT}. Fix: --target=v5e:1.")
  if math.prod(shape) > _LARGEST[kind] or slices > _MOST_SLICES:
    raise ConfigError(f"--target={name}: no target has more than {_LARGEST[kind]} devices of "
                      f"{kind} in one slice or machine, and {_MOST_SLICES} slices. Fix: a smaller "
                      "target.")
  return kind, shape, slices


def _tpus(name: str, kind: str, shape: tuple[int, ...], slices: int) -> tuple:
  if importlib.util.find_spec("libtpu") is None:
    raise ConfigError(f"--target={name} needs the TPU compiler libtpu, which is not installed. "
                      "Fix: pip install -e '.[plan-tpu]', best in an environment of its own: "
                      "beside it, runs on a CPU print alarms unless JAX_PLATFORMS=cpu is set.")
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  sides = _SMALLEST[kind] if shape == (1,) else "x".join(map(str, shape))
  try:
    described = topologies.get_topology_desc(platform="tpu", topology_name=f"{kind}:{sides}",
                                             **({"num_slices": slices} if slices > 1 else {}))
  except Exception as error:  # the runtime's errors have no specific type
    reason = str(error).splitlines()[0][:120]
    raise ConfigError(f"--target={name}: the TPU compiler knows no such slice ({reason}). "
                      f"Allowed are {FORMAT}. Fix: sides of a slice that is sold, such as "
                      f"{kind}:{_SMALLEST[kind]}.") from error
  devices = tuple(described.devices)
  return devices[:1] if shape == (1,) else devices


def _gpus(kind: str, shape: tuple[int, ...]) -> tuple:
  if not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)):
    raise ConfigError(f"--target={kind}:{shape[0]} needs JAX's CUDA plugin, which is not "
                      "installed. Fix: pip install -e '.[plan-gpu]'.")
  os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
  # Both would run kernels to choose among them.
  flags = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
  os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
  described = topologies.get_topology_desc(platform="cuda", topology_name=kind,
                                           target_config=_gpu_config(kind),
                                           topology=f"1x1x{math.prod(shape)}")
  return tuple(described.devices)


def _gpu_config(kind: str) -> str:
  """Returns the compiler's description of a GPU of compute capability 9.0."""
  cores, memory, bandwidth = _GPUS[kind]
  facts = {
      "threads_per_block_limit": 1024, "threads_per_warp": 32, "shared_memory_per_block": 49_152,
      "shared_memory_per_core": 233_472, "threads_per_core_limit": 2048, "core_count": cores,
      "fpus_per_core": 128, "block_dim_limit_x": 2_147_483_647, "block_dim_limit_y": 65_535,
      "block_dim_limit_z": 65_535, "memory_bandwidth": bandwidth, "l2_cache_size": 52_428_800,
      "clock_rate_ghz": 1.98, "device_memory_size": memory,
      "shared_memory_per_block_optin": 232_448, "registers_per_core_limit": 65_536,
      "registers_per_block_limit": 65_536,
  }
  device = " ".join(f"{key}: {value}" for key, value in facts.items())
  return (f"gpu_device_info {{ {device} cuda_compute_capability {{ major: 9 }} }} "
          "platform_name: 'CUDA' dnn_version_info { major: 9 minor: 8 patch: 0 } "
          "runtime_version { major: 12 minor: 8 patch: 0 } "
          f"device_description_str: 'NVIDIA {kind.upper()}'")
