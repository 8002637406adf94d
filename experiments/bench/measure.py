"""Clocks and counts: seconds of each part of an iteration, FLOPs by formula, the measured peak."""

import dataclasses
import os
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np

import workload

TRIAL_MICRO = (1, 2, 4, 8, 16)


def seconds(function, *arguments) -> tuple[float, object]:
  """Calls the function; returns (wall time until the result is ready, the result)."""
  begin = time.perf_counter()
  out = jax.block_until_ready(function(*arguments))
  return time.perf_counter() - begin, out


def peak_flops(dtype: str) -> tuple[int, float]:
  """Returns (side of two square matrices, FLOP/s of their product), the best of 10."""
  side = 2048 if jax.default_backend() == "cpu" else 8192
  product, x = jax.jit(jnp.matmul), jnp.ones((side, side), dtype)
  jax.block_until_ready(product(x, x))
  return side, 2 * side**3 / min(seconds(product, x, x)[0] for _ in range(10))


def model_flops(shape: workload.Shape) -> dict[str, float]:
  """Returns the FLOPs that each part needs; recomputation, masking and padding do not count.

  M is the number of weights in the blocks' products and E = D V that of the head. A token that sees
  s positions costs attention(s) = 4 s H head_dim N. With P tokens of prompt and n new tokens:

    generation   prompts P (2 M + attention(P / 2)) + B n (2 M + 2 E + attention(P + n / 2))
    scoring      B L (2 M + 2 E + attention(L / 2))
    train step   3 * scoring
    iteration    generation + train step
  """
  m, rows = shape.model, shape.rows
  heads = m.num_heads * m.head_dim
  blocks = m.num_layers * m.width * (2 * heads + 2 * m.num_kv_heads * m.head_dim + 3 * m.mlp_width)
  head = m.width * m.vocab_size

  def attention(seen):
    return 4 * seen * heads * m.num_layers

  def decoding(new):
    return np.sum(new * (2 * blocks + 2 * head + attention(shape.prompt + new / 2)))

  def scored(new):
    length = shape.prompt + new
    return np.sum(length * (2 * blocks + 2 * head + attention(length / 2)))

  prefill = shape.prompts * shape.prompt * (2 * blocks + attention(shape.prompt / 2))
  generation = prefill + decoding(np.full(rows, shape.new))
  lengths = workload.ragged_lengths(shape)
  ragged = prefill + decoding(lengths)
  scoring = scored(np.full(rows, shape.new))
  return {
      "generation": generation,
      "ragged_generation": ragged,
      "scoring": scoring,
      "train_step": 3 * scoring,
      "iteration": generation + 3 * scoring,
      "ragged_iteration": ragged + 3 * scored(lengths),
  }


def tokens(shape: workload.Shape) -> dict[str, int]:
  """Returns the tokens of each part: new tokens for generation, else whole rows."""
  new, total = shape.rows * shape.new, shape.rows * (shape.prompt + shape.new)
  return {
      "generation": new,
      "ragged_generation": int(workload.ragged_lengths(shape).sum()),
      "scoring": total,
      "train_step": total,
      "iteration": total,
      "ragged_iteration": int(shape.rows * shape.prompt + workload.ragged_lengths(shape).sum()),
  }


def fastest_micro(programs: workload.Programs,
                  state) -> tuple[workload.Programs, object, dict[int, float]]:
  """Tries one train step with each of TRIAL_MICRO.

  Returns:
    (programs with the fastest, state, seconds of each trial).
  """
  rollout, _ = workload.rollout(programs, state.params, 0)
  batch = workload.train_batch(programs, rollout, jax.device_get(rollout))
  trials, built = {}, {}
  for micro in TRIAL_MICRO:
    if programs.shape.rows % micro == 0:
      built[micro] = workload.with_micro(programs, micro)
      state, _ = built[micro].step(state, batch)
      trials[micro], (state, _) = seconds(built[micro].step, state, batch)
  return built[min(trials, key=trials.get)], state, trials


def measure(programs: workload.Programs, state, parts: tuple[str, ...],
            reps: int) -> dict[str, list[float]]:
  """Returns seconds of each part, `reps` times in turn after one unmeasured round.

  `iteration_generation` is the part of `iteration` until the rollout is on the host.
  """
  out = {part: [] for part in parts}
  if "iteration" in parts:
    out["iteration_generation"] = []
  rollout, _ = workload.rollout(programs, state.params, 0)
  batch = workload.train_batch(programs, rollout, jax.device_get(rollout))
  for index in range(1, reps + 2):
    once, state = _round(programs, state, parts, index, (rollout, batch))
    for part, value in once.items():
      if index > 1:
        out[part].append(value)
  return out


def _round(programs: workload.Programs, state, parts: tuple[str, ...], index: int,
           given) -> tuple[dict[str, float], object]:
  """Returns (seconds of each part, new state); `given`: the rollout and the batch of all rounds."""
  (rollout, batch), once = given, {}
  ends = workload.ragged_lengths(programs.shape)
  if "generation" in parts:
    once["generation"], _ = seconds(workload.rollout, programs, state.params, index)
  if "ragged_generation" in parts:
    once["ragged_generation"], _ = seconds(workload.rollout, programs, state.params, index, ends)
  if "scoring" in parts:
    sampling = workload.Sampling(jnp.float32(1.0))
    once["scoring"], _ = seconds(programs.score, state.params, rollout, sampling)
  if "train_step" in parts:
    once["train_step"], (state, _) = seconds(programs.step, state, batch)
  if "iteration" in parts:
    once["iteration"], ((state, _), once["iteration_generation"]) = seconds(
        workload.iteration, programs, state, index)
  if "ragged_iteration" in parts:
    once["ragged_iteration"], ((state, _), _) = seconds(workload.iteration, programs, state, index,
                                                        ends)
  return once, state


def counts(programs: workload.Programs, params) -> dict[str, dict]:
  """Returns the engine's counts of one generation with fixed and one with ragged lengths.

  `padded_tokens` is the share of padded slots in a train step of these rows.
  """
  shape = programs.shape
  lengths = {"fixed": np.full(shape.rows, shape.new), "ragged": workload.ragged_lengths(shape)}
  out = {}
  for name, ends in lengths.items():
    _, stats = workload.rollout(programs, params, 0, ends)
    out[name] = dataclasses.asdict(stats) | {
        "wasted_slot_steps": stats.waste,
        "read_over_needed": stats.cache_bytes_read / stats.cache_bytes_needed,
        "padded_tokens": float(1 - np.mean(shape.prompt + ends) / (shape.prompt + shape.new)),
    }
  return out


def environment() -> dict:
  """Returns versions and the machine, for the files of results."""
  device = jax.devices()[0]
  usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  return {
      "jax": jax.__version__,
      "backend": device.platform,
      "device": device.device_kind,
      "cpus": os.cpu_count(),
      "cpus_usable": usable,
      "load_average": os.getloadavg(),
      "machine": platform.machine(),
      "python": platform.python_version(),
  }
