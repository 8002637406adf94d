"""Do labels from shared prefixes train a better value model, and does search with it pay?

  python experiments/papers/tvm/toy.py             # the seeds that are missing, then the tables
  python experiments/papers/tvm/toy.py --render    # the tables again, from the committed results

Writes results/seed<n>.json and the tables of README.md beside this file.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.papers.tvm import search, value_model, walks
from experiments.papers.tvm.search import BeamConfig
from experiments.papers.tvm.value_labels import prefix_value_labels
from experiments.tables_lib import seed_results
from experiments.tables_lib.benchmark.intervals import bootstrap_interval
from experiments.tables_lib.compare import half_width, interval
from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig, ModelConfig, SamplerConfig
from jaxrl_llm.models import Model
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.rollouts import generate
from jaxrl_llm.types import PromptBatch, Sampling

HERE = Path(__file__).parent
SEEDS = tuple(range(5))
CASE = walks.Walk()
SAMPLER = walks.WalkSampler(CASE)
SAMPLES = 32  # responses per training prompt
STEPS, BATCH, LEARNING_RATE = 800, 128, 3e-3
HELD_OUT = 500  # prompts
PLAIN = 8  # responses per held-out prompt, for best of n
BEAMS, CANDIDATES, TRAINED_CANDIDATES = 2, (2, 4, 8, 16), 8
NON_FINAL = slice(walks.PROMPT - 1, walks.PROMPT + CASE.steps + 1)  # before the sum is stated
MODEL = Model(ModelConfig(vocab_size=walks.VOCABULARY, width=64, num_layers=2, num_heads=4,
                          num_kv_heads=4, head_dim=16, mlp_width=128, value_head=True))
ENGINE = SamplerConfig(max_new_tokens=CASE.response, window=16, stop_ids=(walks.END,),
                       pad_id=walks.PAD)


def sampled(prompts: np.ndarray, count: int, seed: int):
  """Returns a Rollout of `count` responses to each prompt, on the host."""
  tokens, ids = np.repeat(prompts, count, 0), np.arange(len(prompts) * count, dtype=np.int32)
  batch = PromptBatch(tokens, np.full(len(tokens), walks.PROMPT, np.int32), ids, ids // count)
  return jax.device_get(_generate(count)(SAMPLER.init(), batch, jax.random.key(seed),
                                         Sampling.of(1.0)))


@functools.cache
def _generate(count: int):
  cfg = SamplerConfig(group_size=count, max_new_tokens=ENGINE.max_new_tokens, window=ENGINE.window,
                      stop_ids=ENGINE.stop_ids, pad_id=ENGINE.pad_id)
  return jax.jit(functools.partial(generate, model=SAMPLER, cfg=cfg, rules=frozenset()))


@functools.cache
def training():
  """Returns `train_value` for MODEL; compiled once for all seeds."""
  mesh = parallel.make_mesh(MeshConfig(data=1), jax.devices()[:1])
  return value_model.make_value_step(MODEL, STEPS, LEARNING_RATE, value_model.ValueLoss(), mesh)


@functools.cache
def values():
  return jax.jit(functools.partial(value_model.token_values, model=MODEL))


def trained(rollout, labels: np.ndarray, seed: int):
  """Returns the parameters of a value model after STEPS batches of random rows."""
  rng = np.random.default_rng(seed)
  column = np.arange(labels.shape[1])
  mask = (column >= walks.PROMPT - 1) & (column < rollout.length[:, None])

  def batches():
    for _ in range(STEPS):
      rows = rng.integers(0, len(labels), BATCH)
      yield value_model.value_batch(rollout.tokens[rows], rollout.length[rows], labels[rows],
                                    mask[rows])

  return training()(MODEL.init(jax.random.key(seed)), batches())[0]


def fit(params, rollout) -> dict[str, float]:
  """Returns how a model's values agree with the exact ones, before the sum is stated."""
  estimates = np.asarray(values()(params, jnp.asarray(rollout.tokens), jnp.asarray(rollout.length)))
  exact = walks.exact_values(CASE, rollout.tokens)
  estimates, exact = estimates[:, NON_FINAL].ravel(), exact[:, NON_FINAL].ravel()
  return {"correlation": float(np.corrcoef(estimates, exact)[0, 1]),
          "error": float(np.mean(np.square(estimates - exact)))}


def searched(scorer: search.Scorer, prompts: np.ndarray, candidates: int,
             seed: int) -> list[list[search.Beam]]:
  """Returns the beams of each prompt; a step is one token."""
  generator = search.engine_generator(
      SAMPLER.init(), jax.random.key(1000 + seed), Sampling.of(1.0), model=SAMPLER,
      cfg=SamplerConfig(max_new_tokens=1, window=16, stop_ids=ENGINE.stop_ids,
                        pad_id=ENGINE.pad_id))
  return search.step_beam_search(
      generator, scorer, prompts.tolist(),
      BeamConfig(candidates, BEAMS, max_steps=CASE.response, max_new_tokens=CASE.response))


def right(prompts: np.ndarray, beams: list[list[search.Beam]], place: int = 0) -> np.ndarray:
  """Returns whether the beam in this place is right, [P] float64."""
  rows = np.array([[*prompt, *group[place].ids]
                   for prompt, group in zip(prompts, beams, strict=True)])
  return walks.rewards(CASE, rows)


def constant(rows) -> np.ndarray:
  """A scorer that knows nothing."""
  return np.zeros(len(rows))


def with_samples(params, rollout) -> dict[str, np.ndarray]:
  """Returns the accuracy on each prompt of one sample, of the best of PLAIN and of their vote."""
  correct = walks.rewards(CASE, rollout.tokens).reshape(-1, PLAIN)
  score = value_model.make_scorer(params, MODEL)
  scores = score(rollout.tokens.tolist()).reshape(-1, PLAIN)
  answers = rollout.tokens[:, walks.PROMPT + CASE.steps + 1].reshape(-1, PLAIN)
  target = rollout.tokens[::PLAIN, 1]
  voted = [search.weighted_vote(a, s) for a, s in zip(answers.tolist(), scores, strict=True)]
  best = np.take_along_axis(correct, search.best_of_n(scores)[:, None], 1)[:, 0]
  return {"plain": correct.mean(1), "best of n": best, "vote": (voted == target).astype(float)}


def measure(seed: int) -> dict:
  """Returns what one seed of samples and parameters shows."""
  rollout = sampled(walks.prompts(False), SAMPLES, seed)
  outcome = walks.rewards(CASE, rollout.tokens).astype(np.float32)
  labels = {"prefix": np.asarray(prefix_value_labels(*map(jnp.asarray, (
      rollout.tokens, rollout.length, outcome, rollout.group_id))))}
  labels["outcome"] = np.repeat(outcome[:, None], rollout.tokens.shape[1], 1)
  prompts = walks.prompts(True)[:HELD_OUT]
  held_out = sampled(prompts, PLAIN, 100_000 + seed)
  measurements = {"fit": {}}
  for name, one in labels.items():
    params = trained(rollout, one, seed)
    measurements["fit"][name] = fit(params, held_out)
    if name == "prefix":
      accuracy = with_samples(params, held_out)
      scorer = value_model.make_scorer(params, MODEL)
      beams = searched(scorer, prompts, TRAINED_CANDIDATES, seed)
      accuracy["step beam"] = right(prompts, beams)
  measurements["accuracy"] = {name: float(x.mean()) for name, x in accuracy.items()}
  measurements["gain"] = list(bootstrap_interval(accuracy["step beam"] - accuracy["plain"]))
  exact = functools.partial(walks.exact_score, CASE)
  measurements["exact"] = [float(right(prompts, searched(exact, prompts, k, seed)).mean())
                           for k in CANDIDATES]
  beams = searched(constant, prompts, BEAMS, seed)
  measurements["constant"] = float(np.mean([right(prompts, beams, i).mean() for i in range(BEAMS)]))
  return measurements


def fit_table(results: list[dict]) -> str:
  """Returns both kinds of labels, and their paired difference, over seeds."""
  rows = []
  for name in ("prefix", "outcome"):
    fits = [one["fit"][name] for one in results]
    rows.append((f"{name} labels", interval(np.array([x["correlation"] for x in fits])),
                 f"{min(x['correlation'] for x in fits):.3f}",
                 interval(np.array([x["error"] for x in fits]))))
  gap = np.array([one["fit"]["prefix"]["error"] - one["fit"]["outcome"]["error"]
                  for one in results])
  rows.append(("prefix - outcome", "", "", f"{gap.mean():+.5f} ± {half_width(gap):.2g}"))
  return markdown_table(("trained on", "correlation with exact V", "smallest", "squared error"),
                        rows)


def trained_table(results: list[dict]) -> str:
  """Returns the accuracy of each use of the trained values, over seeds."""
  names = {"plain": "one sample", "vote": f"weighted vote of {PLAIN}",
           "best of n": f"best of {PLAIN}",
           "step beam": f"step beam search, K = {TRAINED_CANDIDATES}, b = {BEAMS}"}
  rows = [(text, interval(np.array([one["accuracy"][name] for one in results])))
          for name, text in names.items()]
  gains = ", ".join(f"{low:+.3f} to {high:+.3f}" for low, high in (x["gain"] for x in results))
  return markdown_table(("use", "accuracy"), rows) + (
      f"\nStep beam search minus one sample, 95 % paired bootstrap over {HELD_OUT} prompts, by "
      f"seed: {gains}.\n")


def exact_table(results: list[dict]) -> str:
  """Returns the accuracy by K with exact values, with its standard error over prompts."""
  rows = [(f"constant, K = {BEAMS}", np.mean([one["constant"] for one in results]))]
  rows += [(f"exact V, K = {k}", np.mean([one["exact"][i] for one in results]))
           for i, k in enumerate(CANDIDATES)]
  count = HELD_OUT * len(results)
  return markdown_table(("scorer", "accuracy", "standard error"), [
      (text, f"{mean:.4f}", f"{np.sqrt(mean * (1 - mean) / count):.4f}") for text, mean in rows])


def write_tables(results: list[dict], page: Path) -> None:
  """Writes the tables into the page."""
  for part, table in (("fit", fit_table), ("trained", trained_table), ("exact", exact_table)):
    replace_part(page, f"toy.py, {part}", table(results))


if __name__ == "__main__":
  seed_results.main(__doc__, HERE, SEEDS, measure, write_tables)
