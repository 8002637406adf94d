"""Workload W with google-tunix on a CPU, for `iteration.py --peers`.

  TUNIX/bin/python experiments/bench/tunix_grpo.py --steps=4 --json=tunix.json

It runs in Tunix's own environment and imports nothing of this package. The network is a random
Qwen3 of W's shape, the tokenizer has a word for each id, and no file is downloaded. JSON: seconds
between two reward calls, which is a whole step (`iteration`), and of each call of the sampler
without log-probs (`generation`).
"""

import argparse
import json
import time
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from tunix.generate import sampler as samplers
from tunix.models.qwen3 import model as qwen3
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

FIRST_ID = 3  # ids below stand for padding, end and beginning
SCALE = 0.02  # standard deviation of the weights, as in the other libraries
NEVER = 10**6


def parse() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  sizes = {"prompts": 8, "group": 8, "prompt": 64, "new": 128, "micro": 2, "steps": 5, "reps": 2,
           "vocab": 2048, "layers": 6, "width": 256}
  for name, default in sizes.items():
    parser.add_argument(f"--{name}", type=int, default=default)
  parser.add_argument("--json", type=Path, required=True)
  return parser.parse_args()


class WordTokenizer:
  """The word "w7" stands for id 7."""

  def encode(self, text: str, **_) -> list[int]:
    return [int(word[1:]) for word in text.split()]

  def decode(self, ids, **_) -> str:
    return " ".join(f"w{int(i)}" for i in ids)

  def pad_id(self) -> int:
    return 0

  def eos_id(self) -> int:
    return 1

  def bos_id(self) -> int:
    return 2


def network(args: argparse.Namespace, mesh: Mesh) -> qwen3.Qwen3:
  config = qwen3.ModelConfig(
      num_layers=args.layers, vocab_size=args.vocab, embed_dim=args.width,
      hidden_dim=3 * args.width, num_heads=8, head_dim=args.width // 8, num_kv_heads=4,
      rope_theta=1_000_000, norm_eps=1e-6, use_tied_embedding=True,
      remat_config=qwen3.RematConfig.NONE)
  with mesh:
    model = qwen3.Qwen3(config, rngs=nnx.Rngs(0))
    weights = jax.tree.map(
        lambda x: x if x.ndim < 2 else SCALE * jax.random.normal(
            jax.random.key(x.size), x.shape, x.dtype), nnx.state(model))
    nnx.update(model, weights)
  return model


def prompts(args: argparse.Namespace, count: int, seed: int = 0) -> list[str]:
  """Returns texts of `prompt` tokens, of which the tokenizer's beginning is the first."""
  ids = np.random.default_rng(seed).integers(FIRST_ID, args.vocab, (count, args.prompt - 1))
  return [" ".join(f"w{i}" for i in row) for row in ids]


def sample(args: argparse.Namespace, model: qwen3.Qwen3, mesh: Mesh) -> list[float]:
  """Returns the seconds of each call of the sampler after the first, which compiles."""
  cache = samplers.CacheConfig(cache_size=args.prompt + args.new, num_layers=args.layers,
                               num_kv_heads=4, head_dim=args.width // 8)
  sampler, seconds = samplers.Sampler(model, WordTokenizer(), cache), []
  for seed in range(args.reps + 1):
    begin = time.perf_counter()
    with mesh:
      sampler(input_strings=prompts(args, args.prompts * args.group), echo=False, seed=seed,
              max_generation_steps=args.new, max_prompt_length=args.prompt, temperature=1.0,
              top_p=1.0, return_logprobs=False)
    seconds.append(time.perf_counter() - begin)
  return seconds[1:]


def cluster_config(args: argparse.Namespace, mesh: Mesh) -> rl_cluster.ClusterConfig:
  training = rl_cluster.RLTrainingConfig(
      actor_optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-5)),
      eval_every_n_steps=NEVER, max_steps=args.steps, mini_batch_size=args.prompts,
      train_micro_batch_size=args.micro, rollout_micro_batch_size=args.prompts,
      compute_logps_micro_batch_size=args.prompts)
  rollout = base_rollout.RolloutConfig(
      max_tokens_to_generate=args.new, max_prompt_length=args.prompt,
      kv_cache_size=args.prompt + args.new, temperature=1.0, top_p=1.0, top_k=None,
      return_logprobs=False)
  roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
  return rl_cluster.ClusterConfig(role_to_mesh=dict.fromkeys(roles, mesh), rollout_engine="vanilla",
                                  training_config=training, rollout_config=rollout)


def train(args: argparse.Namespace, model: qwen3.Qwen3, mesh: Mesh) -> list[float]:
  """Returns the seconds until the first reward call, and between two of them."""
  times = [time.perf_counter()]

  def reward(prompts, completions, **_) -> list[float]:
    times.append(time.perf_counter())
    return [sum(int(word[1:]) % 2 == 0 for word in text.split()) / max(1, len(text.split()))
            for text in completions]

  cluster = rl_cluster.RLCluster(actor=model, reference=None, tokenizer=WordTokenizer(),
                                 cluster_config=cluster_config(args, mesh))
  method = grpo_learner.GRPOConfig(num_generations=args.group, num_iterations=1, beta=0.0,
                                   epsilon=0.2)
  learner = grpo_learner.GRPOLearner(rl_cluster=cluster, algo_config=method, reward_fns=reward)
  batches = [{"prompts": np.array(prompts(args, args.prompts, seed)),
              "answer": np.array([""] * args.prompts)} for seed in range(args.steps)]
  times[0] = time.perf_counter()
  with mesh:
    learner.train(batches)
  return np.diff(times).tolist()


def main() -> None:
  args = parse()
  mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
  model = network(args, mesh)
  generation = sample(args, model, mesh)
  versions = {name: metadata.version(name) for name in ("google-tunix", "jax")}
  args.json.write_text(json.dumps({"versions": versions, "generation": generation,
                                   "iteration": train(args, model, mesh)}) + "\n")


if __name__ == "__main__":
  main()
