"""Importing about 1 GB of shards takes hardly more host memory than the parameters themselves."""

import json
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

pytestmark = pytest.mark.nightly

CONFIG = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 32000,
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 30,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
    "tie_word_embeddings": True}

MEASURE = r"""
import ctypes, gc, os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
from pathlib import Path
import jax, jax.numpy as jnp
from safetensors.numpy import load_file
from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig
from jaxrl_llm.models import load_pretrained
from jaxrl_llm.models.hf.network_config import read_config

directory = Path(sys.argv[1])
mesh = parallel.make_mesh(MeshConfig(data=1, fsdp=2, tensor=1))
read_config(directory)  # so that imports are not measured

def peak():
  status = Path("/proc/self/status").read_text()
  return int(status.split("VmHWM:")[1].split()[0]) * 1024

def measured(run):
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)  # freed memory goes back to the system
  Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is in use now
  before = peak()
  held = jax.block_until_ready(run())
  return peak() - before, held

def whole():
  host = {}
  for file in directory.glob("*.safetensors"):
    host |= load_file(file)
  return {name: jnp.array(x, copy=True) for name, x in host.items()}

ours, (_, params, _) = measured(lambda: load_pretrained(directory, mesh=mesh))
size = sum(x.nbytes for x in jax.tree.leaves(params))
assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(params))
del params, _
print(ours, measured(whole)[0], size)
"""


def shards(directory):
  """Five files, written one after the other; names follow the published checkpoints."""
  c, rng = CONFIG, np.random.default_rng(0)
  width, inner, q, kv = c["hidden_size"], c["intermediate_size"], 16 * 64, 8 * 64
  shapes = {"model.embed_tokens.weight": (c["vocab_size"], width), "model.norm.weight": (width,)}
  for i in range(c["num_hidden_layers"]):
    layer = {
        "input_layernorm": (width,), "post_attention_layernorm": (width,),
        "self_attn.q_proj": (q, width), "self_attn.k_proj": (kv, width),
        "self_attn.v_proj": (kv, width), "self_attn.o_proj": (width, q),
        "self_attn.q_norm": (64,), "self_attn.k_norm": (64,),
        "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner)}
    shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
  noise = rng.standard_normal(32000 * 1024, dtype=np.float32).astype(ml_dtypes.bfloat16)
  weight_map = {}
  for number, names in enumerate(np.array_split(list(shapes), 5)):
    file = f"model-{number + 1:05d}-of-00005.safetensors"
    save_file({str(n): noise[:np.prod(shapes[n])].reshape(shapes[n]) for n in names},
              directory / file)
    weight_map |= {str(n): file for n in names}
  index = {"metadata": {}, "weight_map": weight_map}
  (directory / "model.safetensors.index.json").write_text(json.dumps(index))
  (directory / "config.json").write_text(json.dumps(CONFIG))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_import_peaks_at_little_more_than_the_parameters(tmp_path):
  shards(tmp_path)
  stored = sum(p.stat().st_size for p in tmp_path.glob("*.safetensors"))
  done = subprocess.run(
      [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=False)
  shutil.rmtree(tmp_path)
  assert done.returncode == 0, done.stderr
  ours, full_peak, size = map(int, done.stdout.split())
  assert stored > 0.9e9 and abs(size - stored) < 0.01 * stored
  assert ours <= 1.5 * stored, f"{ours / stored:.2f} times the checkpoint"
  assert full_peak > 1.5 * stored, "reading the whole checkpoint first must not pass"
