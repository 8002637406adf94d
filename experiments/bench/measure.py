"""Clocks and counts: seconds of each part of an iteration, FLOPs by formula, the peak of a matrix
product.
"""

import dataclasses
import os
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np

import workload

TRIAL_MICRO = (1, 2, 4, 8, 16)


def seconds(function) -> tuple[float, object]:
  """(wall time until the result is ready, the result)."""
  begin = time.perf_counter()
  out = jax.block_until_ready(function())
  return time.perf_counter() - begin, out


def peak_flops(dtype: str) -> tuple[int, float]:
  """(side of the matrices, FLOP/s of their product), the best of 10."""
  side = 2048 if jax.default_backend() == "cpu" else 8192
  product = jax.jit(lambda x: x @ x)
  x = jnp.ones((side, side), dtype)
  jax.block_until_ready(product(x))
  return side, 2 * side**3 / min(seconds(lambda: product(x))[0] for _ in range(10))


def model_flops(shape: workload.Shape) -> dict[str, float]:
  """FLOPs that the work needs, by part; what a program recomputes, masks out or pads is not
  counted.

  With M weights in the blocks' products, E = D V in the head, and attention(s) = 4 s H head_dim N
  for a token that
  sees s positions:

    generation   prompts * prompt * (2 M + attention(prompt / 2)) + B * new * (2 M + 2 E + attention(prompt + new / 2))
    scoring      B * L * (2 M + 2 E + attention(L / 2))
    train step   3 * scoring
    iteration    generation + train step
  """
  m, rows, length = shape.model, shape.rows, shape.prompt + shape.new
  heads = m.num_heads * m.head_dim
  blocks = m.num_layers * m.width * (2 * heads + 2 * m.num_kv_heads * m.head_dim + 3 * m.mlp_width)
  head = m.width * m.vocab_size
  attention = lambda seen: 4 * seen * heads * m.num_layers
  drawn = lambda new: np.sum(new * (2 * blocks + 2 * head + attention(shape.prompt + new / 2)))
  prefill = shape.prompts * shape.prompt * (2 * blocks + attention(shape.prompt / 2))
  generation = prefill + drawn(np.full(rows, shape.new))
  scoring = rows * length * (2 * blocks + 2 * head + attention(length / 2))
  return {
      "generation": generation,
      "ragged_generation": prefill + drawn(workload.ragged_lengths(shape)),
      "scoring": scoring,
      "train_step": 3 * scoring,
      "iteration": generation + 3 * scoring
  }


def tokens(shape: workload.Shape) -> dict[str, int]:
  """Tokens that a part is credited with: new ones for generation, whole rows elsewhere."""
  new, whole = shape.rows * shape.new, shape.rows * (shape.prompt + shape.new)
  return {
      "generation": new,
      "ragged_generation": int(workload.ragged_lengths(shape).sum()),
      "scoring": whole,
      "train_step": whole,
      "iteration": whole
  }


def fastest_micro(programs: workload.Programs,
                  state) -> tuple[workload.Programs, object, dict[int, float]]:
  """(programs with the fastest of TRIAL_MICRO, state, seconds of each one's single trial step)."""
  drawn, _ = workload.rollout(programs, state.params, 0)
  batch = workload.train_batch(programs, drawn, jax.device_get(drawn))
  trials, built = {}, {}
  for micro in TRIAL_MICRO:
    if programs.shape.rows % micro == 0:
      built[micro] = workload.with_micro(programs, micro)
      state, _ = built[micro].step(state, batch)
      trials[micro], (state, _) = seconds(lambda run=built[micro], s=state: run.step(s, batch))
  return built[min(trials, key=trials.get)], state, trials


def measure(programs: workload.Programs, state, parts: tuple[str, ...],
            reps: int) -> dict[str, list[float]]:
  """Seconds of each part, `reps` times in turn after one unmeasured round.

  `iteration_generation` is the part of `iteration` until the rollout is on the host.
  """
  out = {part: [] for part in parts} | ({"iteration_generation": []} if "iteration" in parts else {})
  sampling, ends = workload.Sampling(jnp.float32(1.0)), workload.ragged_lengths(programs.shape)
  drawn, _ = workload.rollout(programs, state.params, 0)
  batch = workload.train_batch(programs, drawn, jax.device_get(drawn))
  for index in range(1, reps + 2):
    once = {}
    if "generation" in parts:
      once["generation"], _ = seconds(
          lambda i=index, s=state: workload.rollout(programs, s.params, i)[0])
    if "ragged_generation" in parts:
      once["ragged_generation"], _ = seconds(
          lambda i=index, s=state: workload.rollout(programs, s.params, i, ends)[0])
    if "scoring" in parts:
      once["scoring"], _ = seconds(lambda s=state: programs.score(s.params, drawn, sampling))
    if "train_step" in parts:
      once["train_step"], (state, _) = seconds(lambda s=state: programs.step(s, batch))
    if "iteration" in parts:
      once["iteration"], ((state, _), once["iteration_generation"]) = seconds(
          lambda i=index, s=state: workload.iteration(programs, s, i))
    for part, value in once.items():
      if index > 1:
        out[part].append(value)
  return out


def counts(programs: workload.Programs, params) -> dict[str, dict]:
  """What a generation of each kind of lengths did, and the share of padded slots in a train step of
  its whole rows.
  """
  shape = programs.shape
  out = {}
  for name, ends in (("fixed", np.full(shape.rows,
                                       shape.new)), ("ragged", workload.ragged_lengths(shape))):
    _, stats = workload.rollout(programs, params, 0, ends)
    out[name] = dataclasses.asdict(stats) | {
        "wasted_slot_steps": stats.waste,
        "read_over_needed": stats.cache_bytes_read / stats.cache_bytes_needed,
        "padded_tokens": float(1 - np.mean(shape.prompt + ends) / (shape.prompt + shape.new))
    }
  return out


def environment() -> dict:
  device = jax.devices()[0]
  usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  return {
      "jax": jax.__version__,
      "backend": device.platform,
      "device": device.device_kind,
      "devices_used": 1,
      "cpus": os.cpu_count(),
      "cpus_usable": usable,
      "load_average": os.getloadavg(),
      "machine": platform.machine(),
      "python": platform.python_version()
  }
