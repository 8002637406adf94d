"""Do contrastive scores find the token that decides, and does weighing by them help DPO?

  python experiments/papers/critical_tokens/toy.py             # missing seeds, and tables
  python experiments/papers/critical_tokens/toy.py --render    # the tables again, from the results

Writes results/seed<n>.json and the tables of README.md beside this file.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.papers.critical_tokens import pairs as preference
from experiments.papers.critical_tokens import policies, probing
from experiments.tables_lib import chains, seed_results
from experiments.tables_lib.compare import half_width, interval
from experiments.tables_lib.page_parts import narrow_tables, replace_part
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.types import Sampling

HERE = Path(__file__).parent
SEEDS = tuple(range(10, 15))
QUESTIONS, SAMPLES, TEMPERATURE = 300, 16, 1.0
PROBE_TEMPERATURE = 0.4
HELD_OUT, PLANTED, PROBED, CONTINUATIONS = 500, 300, 85, 64


def planted(params, pos, neg, seed: int, key) -> dict:
  """Returns how often scores and prober find the planted error."""
  asked = chains.prompts(PLANTED, seed, True)
  responses, at = chains.corrupted(asked, seed)
  rows = np.column_stack([asked, responses])
  out = {}
  for name, beta in (("contrastive", 1.0), ("positive model", 0.0)):
    s = np.asarray(policies.scores()(pos, neg, jnp.asarray(rows), beta))[:, chains.PROMPT:]
    rank = np.sum(s < s[np.arange(len(s)), at][:, None], 1)
    out[name] = {"lowest": float(np.mean(rank == 0)), "lowest three": float(np.mean(rank < 3))}
  generator = policies.generator(params, key, PROBE_TEMPERATURE)
  right = chains.responses(asked)[:, chains.TERMS - 1]
  grade = [functools.partial(_states, total) for total in right[:PROBED]]
  shares = probing.probe_critical_tokens(generator, asked[:PROBED].tolist(),
                                         responses[:PROBED].tolist(), grade, CONTINUATIONS)
  critical = [probing.critical_position(one) for one in shares]
  hits = [place is not None and place <= at[row] for row, place in enumerate(critical)]
  out["probed"] = float(np.mean(hits))
  out["probed exactly"] = float(np.mean(np.array([-1 if c is None else c for c in critical])
                                        == at[:PROBED]))
  return out | {"replaced": replaced(params, asked[:PROBED], responses, critical, right, key)}


def _states(total: int, row: list[int]) -> bool:
  """Whether a row's last sum is `total`, and its end follows."""
  response = row[chains.PROMPT:chains.PROMPT + chains.RESPONSE]
  return len(response) == chains.RESPONSE and response[-2:] == [total, chains.END]


def replaced(params, asked, responses, critical, right, key) -> dict[str, float]:
  """Returns pass@1 and pass@64 with the critical token forced, and with it forbidden."""
  place = [(i, c) for i, c in enumerate(critical) if c is not None]
  before = [[*asked[i].tolist(), *responses[i, :c].tolist()] for i, c in place]
  tokens = [int(responses[i, c]) for i, c in place]
  generator = policies.generator(params, key, PROBE_TEMPERATURE)
  forced = generator([[*row, token] for row, token in zip(before, tokens, strict=True)],
                     CONTINUATIONS, 1)
  forbid = probing.without_token(params, key, Sampling.of(PROBE_TEMPERATURE),
                                 model=policies.MODEL, cfg=policies.ENGINE)
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
  greedy = policies.sampled(params, asked, 1, 0.0, jax.random.key(0))
  samples = policies.sampled(params, asked, 4, TEMPERATURE, jax.random.key(seed))
  mean = policies.log_probs()(params, chosen.tokens)[np.asarray(chosen.mask)].mean()
  return {"greedy": float(policies.graded(greedy).mean()),
          "sampled": float(policies.graded(samples).mean()), "chosen": float(mean)}


def measure(seed: int) -> dict:
  """Returns what one seed of parameters, prompts and samples shows."""
  key, rng = jax.random.key(seed), np.random.default_rng(seed)
  keys = dict(zip(("init", "sample", "pos", "neg", "probe", "policy"), jax.random.split(key, 6),
                  strict=True))
  base = policies.train("base", policies.MODEL.init(keys["init"]),
                        policies.demonstrations(rng, seed), key)
  asked = chains.prompts(QUESTIONS, 10_000 + seed, False)
  rows = policies.sampled(base, asked, SAMPLES, TEMPERATURE, keys["sample"])
  right, group = policies.graded(rows), np.repeat(np.arange(QUESTIONS), SAMPLES)
  answers = rows[:, chains.PROMPT + chains.TERMS - 1].tolist()
  positive, negative = preference.contrast_rows(group, right, answers)
  pos, neg = (policies.train("contrast", base, policies.supervised(rows[take], rng), keys[name])
              for name, take in (("pos", positive), ("neg", negative)))
  pairs = preference.preference_pairs(group, right, answers)
  ones = np.ones((len(pairs), policies.LENGTH))
  chosen = policies.sides(base, rows[pairs[:, 0]], ones)
  critical = np.asarray(policies.scores()(pos, neg, jnp.asarray(rows[pairs[:, 1]]), 1.0),
                        np.float64)
  measurements = {"pairs": len(pairs), "wrong": float(1 - right.mean()),
                  "planted": planted(base, pos, neg, seed, keys["probe"]),
                  "trained": {"base": evaluated(base, seed, chosen)}}
  wrong = rows[pairs[:, 1]]
  mask = policies.MASK & (wrong != chains.PAD)
  alike = np.sum((1 - critical) * mask, 1, keepdims=True) / mask.sum(1, keepdims=True)
  weights = {"ones": ones, "scores": 1 - critical, "alike": alike * ones}
  measurements["weight"] = float(np.mean(alike))
  for name, (_, kind) in policies.METHODS.items():
    rejected = policies.sides(base, wrong, weights[kind])
    batches = policies.pair_batches(chosen, rejected, np.random.default_rng(seed))
    policy = policies.train(name, base, batches, keys["policy"])
    measurements["trained"][name] = evaluated(policy, seed, chosen)
  return measurements


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
  for name in ("base", *policies.METHODS):
    accuracy, chosen = (of(results, "trained", name, key) for key in ("sampled", "chosen"))
    rows.append((name, interval(accuracy), _change(results, name, "base", "sampled"),
                 _change(results, name, "cDPO", "sampled"),
                 interval(of(results, "trained", name, "greedy")), interval(chosen),
                 _change(results, name, "base", "chosen")))
  return narrow_tables(("trained by", "accuracy, sampled", "minus base", "minus cDPO",
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
