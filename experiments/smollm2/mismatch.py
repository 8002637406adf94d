r"""The gap between a sampler's numerics and the trainer's on SmolLM2, by the token's probability.

  python experiments/smollm2/mismatch.py --numerics=bfloat16 --batches=4
  python experiments/smollm2/mismatch.py --numerics=float32,int8_weights,int8_products
  python experiments/smollm2/mismatch.py

Nothing is trained. Each sampler writes worked answers at temperature 1 (some 12,000 tokens a
batch); the float32 network scores them. With --numerics the figures of these samplers are measured
and stored in mismatch.json; without it the page's part and mismatch.png are drawn from all
that are there. With --out=runs/again all of that goes there, and what differs from the committed
figures is printed. d = log p_trainer - log p_sampler of the sampled token, in nats. A token is
pruned by min_p where its probability is below min_p times the largest one (arXiv 2512.23087).
"""

import argparse
import contextlib
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

from experiments.commands import cache
from experiments.smollm2 import measurement
from experiments.smollm2.checkpoint import checkpoint
from experiments.smollm2.config_files import recipe
from experiments.tables_lib.benchmark import loading
from jaxrl_llm import config as config_lib
from jaxrl_llm import parallel
from jaxrl_llm.ops.token_stats import scaled_logits
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.runs.rollout_batch import iteration_key, next_prompts
from jaxrl_llm.types import Sampling
from jaxrl_llm.wiring.loop import make_source

NAME = "mismatch"
NUMERICS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8_weights": {"quantization": "int8_weights"},
    "int8_products": {"quantization": "int8_products"},
}
EDGES = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 0.9, 1.0)
MIN_P = {"e^-13": float(np.exp(-13)), "1e-4": 1e-4, "1e-3": 1e-3, "0.01": 0.01, "0.05": 0.05}
PROMPTS, GROUP, NEW, PIECE = 16, 8, 96, 8  # rows of PIECE are scored together


def sampler_config(options: dict, prompts: int = PROMPTS) -> config_lib.Config:
  """Returns the config of a sampler with these options of the rollout, and the chains' prompts."""
  values = recipe("smollm2_chains")
  values.rollout.update(prompts=prompts, group_size=GROUP, max_new_tokens=NEW, **options)
  values.updates.update(token_budget=0, shared_prompts=False)
  values.model.scan_layers = False
  return config_lib.from_dict(values)


def scorer(model):
  """Returns the jitted function (params, tokens [R, L], prompt length [R]) -> what float32 says of
  the NEW tokens after each prompt: log-prob, the largest log-prob, [R, NEW], and the mass that each
  of MIN_P prunes, [R, NEW, 5].
  """

  @jax.jit
  def score(params, tokens, prompt_length):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = model.hidden(params, tokens, positions, jnp.ones_like(tokens))
    columns = prompt_length[:, None] + jnp.arange(NEW)
    before = jnp.take_along_axis(hidden, columns[..., None] - 1, 1)
    targets = jnp.take_along_axis(tokens, columns, 1)

    def row(args):
      states, chosen = args
      log_p = jax.nn.log_softmax(scaled_logits(states, model.head(params), 1.0))
      largest = jnp.max(log_p, -1)
      floors = largest[:, None] + jnp.log(jnp.asarray(list(MIN_P.values())))
      pruned = [jnp.sum(jnp.where(log_p < floors[:, i:i + 1], jnp.exp(log_p), 0), -1)
                for i in range(len(MIN_P))]
      return jnp.take_along_axis(log_p, chosen[:, None], 1)[:, 0], largest, jnp.stack(pruned, -1)

    return jax.lax.map(row, (before, targets))

  return score


def tokens_of(name: str, batches: int, prompts: int = PROMPTS) -> dict[str, np.ndarray]:
  """Returns, of each sampled token: log-prob of the sampler and of float32, the largest of float32,
  and the mass pruned by each of MIN_P.
  """
  built, params = loading.load_directory(checkpoint(), sampler_config(NUMERICS[name], prompts))
  source = make_source(built.cfg, built.task, built.sampler)
  score, parts = scorer(built.learner.model), []
  with contextlib.closing(built.sampler):
    prepared = built.sampler.prepare(params)
    for batch in range(batches):
      _, problems = next_prompts(source, batch)
      rollout, _ = built.sampler.sample(prepared,
                                        parallel.to_global(problems, built.sampler.mesh),
                                        iteration_key(source.seed, batch), Sampling.of(1.0))
      host = jax.device_get(rollout)
      columns = host.prompt_length[:, None] + np.arange(NEW)
      live, sampled = (np.take_along_axis(x, columns, 1)
                       for x in (host.mask, host.behavior_log_probs))
      pieces = [score(params, host.tokens[i:i + PIECE], host.prompt_length[i:i + PIECE])
                for i in range(0, len(live), PIECE)]
      scored = [np.concatenate(x) for x in zip(*jax.device_get(pieces), strict=True)]
      parts.append([sampled[live], *(x[live] for x in scored)])
  names = ("sampler", "trainer", "largest", "pruned")
  return dict(zip(names, map(np.concatenate, zip(*parts, strict=True)), strict=True))


def summary(tokens: dict[str, np.ndarray]) -> dict:
  """Returns the figures of one sampler: of all tokens, by probability, and by min_p."""
  d = (tokens["trainer"] - tokens["sampler"]).astype(np.float64)
  p = np.exp(tokens["sampler"].astype(np.float64))
  ratio, buckets = np.exp(d), []
  for low, high in itertools.pairwise(EDGES):
    inside = (p >= low) & ((p < high) | (high == 1.0))
    count = int(inside.sum())
    x = d[inside]
    buckets.append({
        "low": low, "high": high, "tokens": count,
        "absolute": float(np.abs(x).mean()) if count else None,
        "mean": float(x.mean()) if count else None,
        "half_width": float(1.96 * x.std(ddof=1) / np.sqrt(count)) if count > 1 else None,
        "over_bound": float((np.abs(x) / (1 - p[inside]).clip(1e-6)).mean()) if count else None,
    })
  rules = {}
  for index, (name, value) in enumerate(MIN_P.items()):
    tail = tokens["trainer"] < tokens["largest"] + np.log(value)
    rules[name] = {
        "tokens": float(tail.mean()),
        "of_mismatch": float(np.abs(d)[tail].sum() / np.abs(d).sum()),
        "mass": float(tokens["pruned"][:, index].mean()),
    }
  return {"tokens": len(d), "absolute": float(np.abs(d).mean()), "mean": float(d.mean()),
          "outside": float(((ratio < 0.9) | (ratio > 1.1)).mean()), "buckets": buckets,
          "min_p": rules}


def _number(value: float | None) -> str:
  return "-" if value is None else f"{value:.2g}"


def text(results: dict) -> str:
  """Returns the tables of the page."""
  spans = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(EDGES)]
  totals = [(name, f"{of['tokens']:,}", f"{of['absolute']:.2g}", f"{of['mean']:+.1g}",
            f"{of['outside']:.2%}") for name, of in results.items()]
  gaps = [(name, *(_number(bucket["absolute"]) for bucket in of["buckets"]))
          for name, of in results.items()]
  means = [(name, *("-" if bucket["half_width"] is None else
                    f"{bucket['mean']:+.1g} ± {bucket['half_width']:.1g}"
                    for bucket in of["buckets"])) for name, of in results.items()]
  rules = [(name, *(f"{rule['tokens']:.2%}, {rule['of_mismatch']:.1%}, {rule['mass']:.2%}"
                    for rule in of["min_p"].values())) for name, of in results.items()]
  return "\n".join((
      markdown_table(("sampler", "tokens", "mean abs d", "mean d", "outside [0.9, 1.1]"), totals),
      "Mean abs d by the probability of the token:\n", markdown_table(("sampler", *spans), gaps),
      "Mean d of a bucket with half the width of its 95 % interval:\n",
      markdown_table(("sampler", *spans), means),
      "What min_p removes: of sampled tokens, of the sum of abs d, of float32's mass:\n",
      markdown_table(("sampler", *MIN_P), rules)))


def draw(results: dict, path: Path) -> None:
  """Draws the mean |d| of each bucket over the tokens' probability, and the bound's 1 - p."""
  matplotlib.use("Agg")
  from matplotlib import pyplot as plt

  figure, axes = plt.subplots(figsize=(6, 3.6))
  for name, of in results.items():
    points = [(np.sqrt(max(bucket["low"], 1e-5) * bucket["high"]), bucket["absolute"])
              for bucket in of["buckets"] if bucket["absolute"]]
    axes.plot(*zip(*points, strict=True), marker="o", label=name)
  x = np.geomspace(1e-5, 0.95, 50)
  scale = max(of["buckets"][0]["absolute"] or 0.0 for of in results.values())
  axes.plot(x, scale * (1 - x), "--", color="0.6", label="1 - p, scaled")
  axes.set(xscale="log", yscale="log", xlabel="probability of the sampled token",
           ylabel="mean |log p - log p'|, nats")
  axes.legend(fontsize=8)
  figure.tight_layout()
  figure.savefig(path, dpi=110)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--numerics", default="", help=f"of {', '.join(NUMERICS)}")
  parser.add_argument("--batches", type=int, default=4, help="of --prompts (default 4)")
  parser.add_argument("--prompts", type=int, default=PROMPTS,
                      help=f"of a batch, {GROUP} completions each (default {PROMPTS})")
  measurement.add_out(parser)
  arguments = parser.parse_args()
  cache.keep_programs()
  stored = arguments.out / f"{NAME}.json"
  results = json.loads(stored.read_text()) if stored.exists() else {}
  for name in filter(None, arguments.numerics.split(",")):
    results[name] = summary(tokens_of(name, arguments.batches, arguments.prompts))
    measurement.store({key: results[key] for key in NUMERICS if key in results}, NAME,
                      arguments.out)
  measurement.write(NAME, text, draw, arguments.out)


if __name__ == "__main__":
  main()
