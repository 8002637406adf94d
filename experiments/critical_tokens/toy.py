"""Do contrastive scores find the token that decides, and does weighing by them help DPO?

  python experiments/critical_tokens/toy.py             # the seeds that are missing, and tables
  python experiments/critical_tokens/toy.py --render    # the tables again, from the results

Writes results/seed<n>.json and the tables of README.md beside this file.
"""

import functools
import operator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_llm import parallel
from jaxrl_llm.analysis import chains, seed_results
from jaxrl_llm.config import (
  AggregationConfig,
  MeshConfig,
  ModelConfig,
  OptimizerConfig,
  ParametersConfig,
  SamplerConfig,
  StepConfig,
)
from jaxrl_llm.models import Model, trainable
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.objective.loss import sft_loss
from jaxrl_llm.objective.preference import DpoConfig
from jaxrl_llm.objective.row_stats import row_stats
from jaxrl_llm.reporting.compare import half_width, interval
from jaxrl_llm.reporting.tables import markdown_table, replace_part
from jaxrl_llm.rollouts import probing, search
from jaxrl_llm.training import preference
from jaxrl_llm.training.train_step import init_state, make_optimizer, make_train_step
from jaxrl_llm.types import Sampling, SupervisedBatch

HERE = Path(__file__).parent
SEEDS = tuple(range(10, 15))
MODEL = Model(ModelConfig(vocab_size=chains.VOCABULARY, width=64, num_layers=2, num_heads=4,
                          num_kv_heads=4, head_dim=16, mlp_width=128))
CONTRAST = ParametersConfig("lora", lora_targets=("mlp/(gate|up|down)",))  # rank 8, alpha 16
POLICY = ParametersConfig("lora", lora_rank=16, lora_alpha=32.0)  # all seven projections
CARELESS = 0.12  # share of the teacher's partial sums that are wrong
BASE_STEPS, BASE_RATE = 900, 3e-3
CONTRAST_STEPS, CONTRAST_RATE = 20, 3e-3
DPO_STEPS, DPO_RATE = 90, 1e-3
BATCH = 64
QUESTIONS, SAMPLES, TEMPERATURE = 300, 16, 1.0
PROBE_TEMPERATURE = 0.4
HELD_OUT, PLANTED, PROBED, CONTINUATIONS = 500, 300, 85, 64
# Loss, and what rejected tokens are weighed by. `alike`: each token of a response by the mean of
# the weights that `scores` would give it, so that only the place of the weight is missing.
METHODS = {
    "DPO": (DpoConfig(), "ones"),
    "RPO": (DpoConfig(nll_coef=1.0), "ones"),
    "DPO, rejected tokens weighed alike": (DpoConfig(), "alike"),
    "cDPO": (DpoConfig(), "scores"),
    "cDPO, per position": (DpoConfig(code_compat=True), "scores"),
}
ENGINE = SamplerConfig(max_new_tokens=chains.RESPONSE, window=16, stop_ids=(chains.END,),
                       pad_id=chains.PAD)
COLUMNS = np.arange(chains.PROMPT + chains.RESPONSE)
MASK = COLUMNS >= chains.PROMPT
LENGTH = len(COLUMNS)


@functools.cache
def stepper(kind: str):
  """Returns (optimizer, compiled step) of the base, a contrast model or a method of METHODS."""
  mesh = parallel.make_mesh(MeshConfig(data=1), jax.devices()[:1])
  if kind in METHODS:
    loss, steps, rate, train = _preference(METHODS[kind][0]), DPO_STEPS, DPO_RATE, POLICY
  elif kind == "contrast":
    loss, steps, rate, train = sft_loss, CONTRAST_STEPS, CONTRAST_RATE, CONTRAST
  else:
    loss, steps, rate, train = sft_loss, BASE_STEPS, BASE_RATE, ParametersConfig()
  schedule = optax.warmup_cosine_decay_schedule(0.0, rate, steps // 10, steps)
  tx = make_optimizer(OptimizerConfig(), schedule)
  return tx, make_train_step(loss, MODEL, tx, StepConfig(parameters=train), mesh), steps, train


def _preference(cfg: DpoConfig):
  """`preference_loss` with the signature that a train step expects."""

  def loss(params, batch, *, model, cfg, pairs=cfg):
    del cfg
    return preference.preference_loss(params, batch, model=model, cfg=pairs)

  return loss


def train(kind: str, params, batches, key):
  """Returns merged parameters after the steps of a kind; the given ones stay usable."""
  tx, step, steps, cfg = stepper(kind)
  trained, frozen = trainable.split(jax.tree.map(jnp.array, params), cfg, key)
  state = init_state(trained, tx, frozen)
  for _ in range(steps):
    state, _ = step(state, next(batches))
  return trainable.merge(state.params, state.frozen, cfg)


def supervised(rows: np.ndarray, rng: np.random.Generator):
  """Yields batches of random rows [R, LENGTH], with the loss on the response only."""
  while True:
    tokens = rows[rng.integers(0, len(rows), BATCH)]
    mask = jnp.broadcast_to(jnp.asarray(MASK), tokens.shape)
    weights = loss_weights(mask, None, None, AggregationConfig("token"))
    yield SupervisedBatch(jnp.asarray(tokens), jnp.full(BATCH, LENGTH), weights)


def demonstrations(rng: np.random.Generator, seed: int):
  """Yields batches of a careless teacher's responses."""
  asked = chains.prompts(20_000, seed, False)
  yield from supervised(np.column_stack([asked, chains.careless(asked, CARELESS, rng)]), rng)


def sampled(params, asked: np.ndarray, count: int, temperature: float, key) -> np.ndarray:
  """Returns rows [B * count, LENGTH], padded after their end, those of a prompt contiguous."""
  generator = search.engine_generator(params, key, Sampling.of(temperature), model=MODEL,
                                      cfg=ENGINE)
  rows = np.full((len(asked) * count, LENGTH), chains.PAD, np.int32)
  rows[:, :chains.PROMPT] = np.repeat(asked, count, 0)
  for row, step in zip(rows, generator(asked.tolist(), count, 0), strict=True):
    row[chains.PROMPT:chains.PROMPT + len(step.ids)] = step.ids
  return rows


def graded(rows: np.ndarray) -> np.ndarray:
  return chains.correct(rows[:, :chains.PROMPT], rows[:, chains.PROMPT:])


@functools.cache
def log_probs():
  def of_rows(params, rows):
    length = jnp.full(len(rows), LENGTH)
    return row_stats(params, rows, length, model=MODEL).log_probs

  return jax.jit(of_rows)


@functools.cache
def scores():
  def of_rows(pos, neg, rows, beta):
    length = jnp.full(len(rows), LENGTH)
    return preference.token_scores(pos, neg, rows, length, model=MODEL, beta=beta)

  return jax.jit(of_rows)


def sides(params, rows: np.ndarray, weights: np.ndarray) -> preference.Responses:
  """Returns rows as one side of pairs, with their log-probs under the reference."""
  mask = MASK & (rows != chains.PAD)
  return preference.Responses(
      jnp.asarray(rows), jnp.full(len(rows), LENGTH), jnp.asarray(mask),
      log_probs()(params, jnp.asarray(rows)), jnp.asarray(weights, jnp.float32))


def pair_batches(chosen, rejected, rng: np.random.Generator):
  """Yields random batches of BATCH // 2 pairs."""
  size = BATCH // 2
  while True:
    take = rng.integers(0, len(chosen.length), size)
    picked = jax.tree.map(operator.itemgetter(take), (chosen, rejected))
    yield preference.PreferenceBatch(*picked, jnp.full(size, 1 / size, jnp.float32))


def planted(params, pos, neg, seed: int, key) -> dict:
  """Returns how often scores and prober find the planted error."""
  asked = chains.prompts(PLANTED, seed, True)
  found, at = chains.corrupted(asked, seed)
  rows = np.column_stack([asked, found])
  out = {}
  for name, beta in (("contrastive", 1.0), ("positive model", 0.0)):
    s = np.asarray(scores()(pos, neg, jnp.asarray(rows), beta))[:, chains.PROMPT:]
    rank = np.sum(s < s[np.arange(len(s)), at][:, None], 1)
    out[name] = {"lowest": float(np.mean(rank == 0)), "lowest three": float(np.mean(rank < 3))}
  generator = search.engine_generator(params, key, Sampling.of(PROBE_TEMPERATURE), model=MODEL,
                                      cfg=ENGINE)
  right = chains.responses(asked)[:, chains.TERMS - 1]
  grade = [functools.partial(_states, total) for total in right[:PROBED]]
  shares = probing.probe_critical_tokens(generator, asked[:PROBED].tolist(),
                                         found[:PROBED].tolist(), grade, CONTINUATIONS)
  critical = [probing.critical_position(one) for one in shares]
  hits = [place is not None and place <= at[row] for row, place in enumerate(critical)]
  out["probed"] = float(np.mean(hits))
  out["probed exactly"] = float(np.mean(np.array([-1 if c is None else c for c in critical])
                                        == at[:PROBED]))
  return out | {"replaced": replaced(params, asked[:PROBED], found, critical, right, key)}


def _states(total: int, row: list[int]) -> bool:
  """Whether a row's last sum is `total`, and its end follows."""
  response = row[chains.PROMPT:chains.PROMPT + chains.RESPONSE]
  return len(response) == chains.RESPONSE and response[-2:] == [total, chains.END]


def replaced(params, asked, found, critical, right, key) -> dict[str, float]:
  """Returns pass@1 and pass@64 with the critical token forced, and with it forbidden."""
  place = [(i, c) for i, c in enumerate(critical) if c is not None]
  before = [[*asked[i].tolist(), *found[i, :c].tolist()] for i, c in place]
  tokens = [int(found[i, c]) for i, c in place]
  generator = search.engine_generator(params, key, Sampling.of(PROBE_TEMPERATURE), model=MODEL,
                                      cfg=ENGINE)
  forced = generator([[*row, token] for row, token in zip(before, tokens, strict=True)],
                     CONTINUATIONS, 1)
  forbid = probing.without_token(params, key, Sampling.of(PROBE_TEMPERATURE), model=MODEL,
                                 cfg=ENGINE)
  other = forbid(before, tokens, CONTINUATIONS)
  out = {}
  for name, steps in (("forced", forced), ("forbidden", other)):
    won = np.zeros((len(place), CONTINUATIONS), bool)
    for index, step in enumerate(steps):
      row, sample = divmod(index, CONTINUATIONS)
      prefix = [*before[row], tokens[row]] if name == "forced" else before[row]
      won[row, sample] = _states(right[place[row][0]], [*prefix, *step.ids])
    out[name] = {"pass@1": float(won.mean()), "pass@64": float(won.any(1).mean())}
  return out


def evaluated(params, seed: int, chosen) -> dict[str, float]:
  """Returns accuracy on held-out prompts, and the mean log-prob of the chosen responses."""
  asked = chains.prompts(HELD_OUT, seed, True)
  greedy = graded(sampled(params, asked, 1, 0.0, jax.random.key(0))).mean()
  found = graded(sampled(params, asked, 4, TEMPERATURE, jax.random.key(seed))).mean()
  mean = log_probs()(params, chosen.tokens)[np.asarray(chosen.mask)].mean()
  return {"greedy": float(greedy), "sampled": float(found), "chosen": float(mean)}


def measure(seed: int) -> dict:
  """Returns what one seed of parameters, prompts and samples shows."""
  key, rng = jax.random.key(seed), np.random.default_rng(seed)
  keys = dict(zip(("init", "sample", "pos", "neg", "probe", "policy"), jax.random.split(key, 6),
                  strict=True))
  base = train("base", MODEL.init(keys["init"]), demonstrations(rng, seed), key)
  asked = chains.prompts(QUESTIONS, 10_000 + seed, False)
  rows = sampled(base, asked, SAMPLES, TEMPERATURE, keys["sample"])
  right, group = graded(rows), np.repeat(np.arange(QUESTIONS), SAMPLES)
  answers = rows[:, chains.PROMPT + chains.TERMS - 1].tolist()
  positive, negative = preference.contrast_rows(group, right, answers)
  pos, neg = (train("contrast", base, supervised(rows[take], rng), keys[name])
              for name, take in (("pos", positive), ("neg", negative)))
  pairs = preference.preference_pairs(group, right, answers)
  ones = np.ones((len(pairs), LENGTH))
  chosen = sides(base, rows[pairs[:, 0]], ones)
  critical = np.asarray(scores()(pos, neg, jnp.asarray(rows[pairs[:, 1]]), 1.0), np.float64)
  found = {"pairs": len(pairs), "wrong": float(1 - right.mean()),
           "planted": planted(base, pos, neg, seed, keys["probe"]),
           "trained": {"base": evaluated(base, seed, chosen)}}
  wrong = rows[pairs[:, 1]]
  said = MASK & (wrong != chains.PAD)
  alike = np.sum((1 - critical) * said, 1, keepdims=True) / said.sum(1, keepdims=True)
  weights = {"ones": ones, "scores": 1 - critical, "alike": alike * ones}
  found["weight"] = float(np.mean(alike))
  for name, (_, kind) in METHODS.items():
    rejected = sides(base, wrong, weights[kind])
    batches = pair_batches(chosen, rejected, np.random.default_rng(seed))
    policy = train(name, base, batches, keys["policy"])
    found["trained"][name] = evaluated(policy, seed, chosen)
  return found


def of(results: list[dict], *path: str) -> np.ndarray:
  """Returns a number of each seed, by its keys."""
  return np.array([functools.reduce(dict.__getitem__, path, one) for one in results])


def planted_table(results: list[dict]) -> str:
  """Returns how often the planted error is found, over seeds."""
  rows = [(f"{text}, lowest s", interval(of(results, "planted", name, "lowest")),
           interval(of(results, "planted", name, "lowest three")))
          for name, text in (("contrastive", "both models, beta = 1"),
                             ("positive model", "positive model only, beta = 0"))]
  rows.append(("rollout prober, at the error", interval(of(results, "planted", "probed exactly")),
               ""))
  rows.append(("rollout prober, at it or before", interval(of(results, "planted", "probed")), ""))
  return markdown_table(("found by", "share of responses", "among the lowest three"), rows)


def replaced_table(results: list[dict]) -> str:
  """Returns what continuations reach with the critical token and without it, over seeds."""
  rows = [(f"{name} at its place", *(interval(of(results, "planted", "replaced", name, k))
                                     for k in ("pass@1", "pass@64")))
          for name in ("forced", "forbidden")]
  return markdown_table(("the prober's critical token", "pass@1", "pass@64"), rows)


def trained_table(results: list[dict]) -> str:
  """Returns accuracy and log-prob of chosen responses by method, and changes against the base."""
  rows = []
  for name in ("base", *METHODS):
    accuracy, chosen = (of(results, "trained", name, key) for key in ("sampled", "chosen"))
    rows.append((name, interval(accuracy), _change(results, name, "base", "sampled"),
                 _change(results, name, "cDPO", "sampled"),
                 interval(of(results, "trained", name, "greedy")), interval(chosen),
                 _change(results, name, "base", "chosen")))
  return markdown_table(("trained by", "accuracy, sampled", "minus base", "minus cDPO",
                         "accuracy, greedy", "log-prob of a chosen token, nats", "minus base"),
                        rows) + (
      "\nMean weight 1 - s of a token in the rejected responses of the pairs: "
      f"{interval(of(results, 'weight'))}.\n")


def _change(results: list[dict], name: str, other: str, key: str) -> str:
  """Returns the mean paired difference of two methods with its interval; "" with itself."""
  if name == other:
    return ""
  gap = of(results, "trained", name, key) - of(results, "trained", other, key)
  return f"{gap.mean():+.3f} ± {half_width(gap):.2g}"


def write_tables(results: list[dict], page: Path) -> None:
  """Writes the tables into the page."""
  for part, table in (("planted", planted_table), ("replaced", replaced_table),
                      ("trained", trained_table)):
    replace_part(page, f"toy.py, {part}", table(results))


if __name__ == "__main__":
  seed_results.main(__doc__, HERE, SEEDS, measure, write_tables)
