r"""Credit of single tokens beside values of 64 rollouts, on SmolLM2's worked answers.

  python experiments/main.py --config=configs/smollm2_chains.py --workdir=runs/chains
  python experiments/smollm2/credit.py --workdir=runs/chains --batches=2
  python experiments/smollm2/credit.py

The policy after the run's warm start samples 32 worked answers of each problem. Of groups with
right and wrong ones some tokens are drawn whose probability was at most .9. A prefix's value is the
share of right ones among 64 completions of it. A token's credit is the value with it minus the
value before it, and what the whole prefix is worth, the value with it minus the group's mean
reward. Cosines of both with the advantages that methods give these tokens, over all drawn tokens;
`halves` is the cosine of the credit of one half of the rollouts with that of the other. With
--workdir the figures are measured and stored in credit.json.
"""

import contextlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.smollm2 import measurement, policies
from experiments.smollm2.token_energy import log_probs
from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.objective.advantages import get_advantage
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.types import AdvantageInputs, PromptBatch

GROUP, PROBLEMS, PREFIXES, ROLLOUTS, PIECE = 32, 4, 10, 64, 8
MOST_LIKELY = 0.9  # probability of a token beyond which nothing was decided
METHODS = {
    "grpo": AdvantageConfig("grpo"),
    "tempo": AdvantageConfig("tempo"),
    "otb": AdvantageConfig("otb"),
}
RESAMPLES = 2000


def advantages(tokens, live, rewards, log_p, squares) -> dict[str, np.ndarray]:
  """Returns each method's advantages [R, T] of groups of GROUP rows; all arguments but rewards [R]
  are [R, T], of sampled tokens.
  """
  inputs = AdvantageInputs(
      rewards=jnp.asarray(rewards), mask=jnp.asarray(live), tokens=jnp.asarray(tokens),
      group_id=jnp.arange(len(rewards)) // GROUP, anchor_log_probs=jnp.asarray(log_p),
      sum_pi_squared=jnp.asarray(squares))
  return {name: np.asarray(get_advantage(cfg.name)(inputs, cfg)) for name, cfg in METHODS.items()}


def drawn(rng: np.random.Generator, live, rewards, log_p, count: int) -> list[tuple[int, int]]:
  """Returns (row, column) of `count` uncertain tokens, each of another row, of mixed groups."""
  by_group = (rewards > 0).reshape(-1, GROUP)
  mixed = np.repeat(by_group.any(1) & ~by_group.all(1), GROUP)
  uncertain = live & (log_p <= np.log(MOST_LIKELY)) & mixed[:, None]
  rows = rng.permutation(np.flatnonzero(uncertain.any(1)))[:count]
  return [(int(row), int(rng.choice(np.flatnonzero(uncertain[row])))) for row in rows]


def value(run, params, prompt: np.ndarray, prefix: np.ndarray, problem, first_row: int):
  """Returns the rewards [ROLLOUTS] of completions that begin with a prefix of a completion.

  Args:
    prompt, prefix: token ids.
    first_row: row id of the first rollout, whose noise follows from it.
  """
  cfg, task = run.cfg.rollout, run.source.task
  width = cfg.max_prompt_tokens + cfg.max_new_tokens
  tokens = np.full((ROLLOUTS, width), task.tokenizer.pad_token_id, np.int32)
  length = len(prompt) + len(prefix)
  tokens[:, :length] = np.concatenate([prompt, prefix])
  number = first_row + np.arange(ROLLOUTS, dtype=np.int32)
  batch = PromptBatch(tokens, np.full(ROLLOUTS, length, np.int32), number, 0 * number)
  rollout = jax.device_get(run.sampler.sample_heldout(
      params, batch, jax.random.key(1), run.sampler.sampling, group_size=ROLLOUTS))
  rewards = []
  for row, live in zip(rollout.tokens, rollout.mask, strict=True):
    sampled = np.flatnonzero(live)[:cfg.max_new_tokens - len(prefix)]
    text = task.tokenizer.decode([*prefix, *row[sampled]], skip_special_tokens=True)
    rewards.append(task.reward(problem, text).value)
  return np.array(rewards)


def measure(workdir: Path, batches: int) -> dict:
  """Returns, for each drawn token, its advantages, its group's mean reward, and the rewards of the
  rollouts before and with it.
  """
  run, tokens = policies.of_run(workdir, prompts=PROBLEMS, group_size=GROUP), []
  rng, first_row = np.random.default_rng(0), 10**6
  with contextlib.closing(run.sampler):
    params = run.params(0)
    heldout = run.sampler.prepare_heldout(params)
    for index, (rollout, rewards) in enumerate(run.sample(params, batches)):
      problems = run.source.task.batch(policies.FIRST_BATCH + index)
      columns = rollout.prompt_length[:, None] + np.arange(run.cfg.rollout.max_new_tokens)
      columns = np.minimum(columns, rollout.tokens.shape[1] - 1)
      live, ids = (np.take_along_axis(x, columns, 1) for x in (rollout.mask, rollout.tokens))
      log_p, squares = _stats(run.learner.model, params, rollout.tokens, columns)
      by_method = advantages(ids, live, rewards, log_p, squares)
      ends = np.isin(ids, run.source.task.stop_ids)  # no completion begins with these
      for row, t in drawn(rng, live & ~ends, rewards, log_p, PREFIXES):
        prompt = rollout.tokens[row, :rollout.prompt_length[row]]
        group = rewards.reshape(-1, GROUP)[row // GROUP]
        values = []
        for end in (t, t + 1):
          values.append(value(run, heldout, prompt, ids[row, :end], problems[row // GROUP],
                              first_row).tolist())
          first_row += ROLLOUTS
        tokens.append({"position": t + 1, "probability": float(np.exp(log_p[row, t])),
                       "group": float(group.mean()), "reward": float(rewards[row]),
                       "before": values[0], "with": values[1],
                       **{name: float(of[row, t]) for name, of in by_method.items()}})
  return {"rollouts": ROLLOUTS, "tokens": tokens}


def _stats(model, params, tokens, columns):
  """Returns (log p, sum of p^2), both [R, T], of the tokens at `columns`."""
  run = jax.jit(log_probs, static_argnums=0)
  pieces = [jax.device_get(run(model, params, tokens[i:i + PIECE], columns[i:i + PIECE]))
            for i in range(0, len(tokens), PIECE)]
  log_p, energy = map(np.concatenate, zip(*pieces, strict=True))
  return log_p, energy - 1 + 2 * np.exp(log_p)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
  """Returns the cosine of two vectors, 0 where one is zero."""
  norm = np.linalg.norm(a) * np.linalg.norm(b)
  return float(a @ b / norm) if norm else 0.0


def credits_of(tokens: list[dict]) -> dict[str, np.ndarray]:
  """Returns, by kind of credit, [2, tokens]: by the rollouts' first half and by the second."""
  before, after = (np.array([t[name] for t in tokens]) for name in ("before", "with"))
  halves = [slice(0, None, 2), slice(1, None, 2)]
  mean = np.array([t["group"] for t in tokens])
  return {"of the token": np.array([(after - before)[:, half].mean(1) for half in halves]),
          "of the prefix": np.array([after[:, half].mean(1) - mean for half in halves])}


def text(results: dict) -> str:
  """Returns the table of the page, with intervals over the drawn tokens."""
  tokens, rng = results["tokens"], np.random.default_rng(0)
  samples = rng.integers(0, len(tokens), (RESAMPLES, len(tokens)))
  rows = []
  for kind, halves in credits_of(tokens).items():
    pairs = {name: (np.array([t[name] for t in tokens]), halves.mean(0)) for name in METHODS}
    for name, (a, b) in (pairs | {"halves": tuple(halves)}).items():
      low, high = np.percentile([cosine(a[i], b[i]) for i in samples], (2.5, 97.5))
      rows.append((kind, name, f"{cosine(a, b):+.2f} ({low:+.2f} to {high:+.2f})"))
  changed = sum(abs(x) > 0.1 for x in credits_of(tokens)["of the token"].mean(0))
  return "\n".join((
      f"{len(tokens)} tokens of at most {MOST_LIKELY} probability, {results['rollouts']} rollouts "
      f"before and with each; {changed} of them change the value by more than .1:\n",
      markdown_table(("credit", "advantage", "cosine (95 % interval)"), rows)))


if __name__ == "__main__":
  measurement.main(__doc__, "credit", measure, text, "4 problems and 10 tokens")
