"""Which layers can spare channels of their MLPs? A one-step policy against equal shares.

  python experiments/papers/budgets/run.py            # the seeds that are missing, then the tables
  python experiments/papers/budgets/run.py --render   # the tables again, from the committed results
  python experiments/papers/budgets/run.py --seeds 7 --out=runs/budgets

Writes results/seed<n>.json and the tables of README.md beside this file.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.papers.budgets import pruning
from experiments.tables_lib import fitting, seed_results
from experiments.tables_lib.compare import interval
from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm.config import ModelConfig, OptimizerConfig, TaskConfig, WarmStartConfig
from jaxrl_llm.models import Model
from jaxrl_llm.objective.loss import sft_loss
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.tasks import make_task
from jaxrl_llm.training.optimizers import make_optimizer, warm_start_schedule

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
LAYERS, CHANNELS = 6, 32
SHAPE = ModelConfig(vocab_size=17, width=64, num_layers=LAYERS, num_heads=4, num_kv_heads=2,
                    head_dim=16, mlp_width=CHANNELS)
MODEL = Model(SHAPE).of_single_segments
WIDTHS = np.full(LAYERS, CHANNELS)
BATCH, STEPS, RATE = 64, 400, 2e-3
TARGET = 0.3  # share of all channels that goes
EASY = 0.05  # the share that the curriculum begins with
LEAST = 1  # channels that each layer keeps
FIRST = 1_000_000  # batches from here on are not those of the training
ROWS, REPORTED = 8, 8  # batches that rewards are computed on in turn, and others for the report
UPDATES, SAMPLES = 80, 16
POLICY_RATE, SPREAD = 0.1, 0.5  # of the policy: learning rate, first standard deviation


@dataclasses.dataclass(frozen=True)
class Pruned:
  """A trained model whose channels are pruned, and the rows that tell how much that costs."""

  params: dict
  scores: np.ndarray  # [N, F]
  rows: list  # SupervisedBatch

  def kept(self, priorities: np.ndarray, target: float) -> np.ndarray:
    """Returns how many channels each layer keeps if a share `target` of all goes."""
    budget = WIDTHS.sum() - round(target * WIDTHS.sum())
    return pruning.project_to_budget(priorities, WIDTHS, budget, LEAST)

  def losses(self, kept: list[np.ndarray], rows: slice) -> np.ndarray:
    """Returns the mean negative log-likelihood, nats per token, of each choice of channels."""
    stay = jnp.asarray(np.stack([pruning.best_channels(self.scores, one) for one in kept]))
    return np.mean([_losses(self.params, stay, batch) for batch in self.rows[rows]], axis=0)

  def rewards(self, kept: list[np.ndarray], turn: int) -> np.ndarray:
    """Returns PPL_dense / PPL_pruned of each choice, on the batch whose turn it is.

    It is 1 where pruning costs nothing.
    """
    rows = slice(turn % ROWS, turn % ROWS + 1)
    losses = self.losses([WIDTHS, *kept], rows)
    return np.exp(losses[0] - losses[1:])


@jax.jit
def _losses(params, stay, batch):
  """[M] f32, the loss on a batch for each of the masks [M, N, F]."""

  def one(stay):
    return sft_loss(pruning.masked(params, SHAPE, stay), batch, model=MODEL, cfg=None)[0]

  return jax.lax.map(one, stay)


# --- the policy: priorities ~ N(mean + slope (target - TARGET) / TARGET, exp(log_spread)^2)


def start_policy() -> dict[str, jax.Array]:
  return {"mean": jnp.zeros(LAYERS), "slope": jnp.zeros(LAYERS),
          "log_spread": jnp.full(LAYERS, np.log(SPREAD))}


def mean_of(policy, target: float):
  """Returns the mean priorities [N]; the target is all that the policy sees."""
  return policy["mean"] + policy["slope"] * (target - TARGET) / TARGET


def surrogate(policy, actions, advantages, target):
  """Returns - mean of advantage * log density; its gradient is that of REINFORCE.

  Args:
    actions: [M, N] priorities.
    advantages: [M].
  """
  z = (actions - mean_of(policy, target)) * jnp.exp(-policy["log_spread"])
  log_density = jnp.sum(-z**2 / 2 - policy["log_spread"], -1)
  return -jnp.mean(advantages * log_density)


def leave_one_out(rewards: np.ndarray) -> np.ndarray:
  """Returns each reward minus the mean of the others, over the standard deviation of all."""
  centred = (rewards - rewards.mean()) * len(rewards) / (len(rewards) - 1)
  return centred / (rewards.std() + 1e-8)


def targets(curriculum: bool) -> np.ndarray:
  """Returns the share that goes at each update: from EASY to TARGET over the first half."""
  rising = np.linspace(EASY, TARGET, UPDATES // 2) if curriculum else []
  return np.concatenate([rising, np.full(UPDATES - len(rising), TARGET)])


def search(case: Pruned, seed: int, *, curriculum: bool) -> np.ndarray:
  """Returns the priorities that the trained policy means at TARGET."""
  rng, tx = np.random.default_rng([seed, 2]), optax.adam(POLICY_RATE)
  policy, gradient = start_policy(), jax.jit(jax.grad(surrogate))
  state = tx.init(policy)
  for turn, target in enumerate(targets(curriculum)):
    noise = rng.normal(size=(SAMPLES, LAYERS))
    actions = np.asarray(mean_of(policy, target)) + np.exp(policy["log_spread"]) * noise
    rewards = case.rewards([case.kept(action, target) for action in actions], turn)
    updates, state = tx.update(gradient(policy, actions, leave_one_out(rewards), target), state)
    policy = optax.apply_updates(policy, updates)
  return np.asarray(mean_of(policy, TARGET))


def random_search(case: Pruned, seed: int) -> np.ndarray:
  """Returns the best of as many random priorities as a policy tries.

  One batch decides little between good ones, so the best SAMPLES are compared on all batches.
  """
  actions = np.random.default_rng([seed, 3]).normal(size=(UPDATES, SAMPLES, LAYERS))
  rewards = [case.rewards([case.kept(action, TARGET) for action in some], turn)
             for turn, some in enumerate(actions)]
  best = actions.reshape(-1, LAYERS)[np.argsort(np.ravel(rewards))[-SAMPLES:]]
  return best[np.argmin(case.losses([case.kept(one, TARGET) for one in best], slice(ROWS)))]


# --- the experiment


@functools.cache
def trained(seed: int) -> Pruned:
  """Returns a model that works chains of digits out, and rows that it was not trained on."""
  task = make_task(TaskConfig(name="modular_chain"), seed, BATCH)
  width = task.longest_prompt() + task.longest_demonstration()
  warm = WarmStartConfig(steps=STEPS, learning_rate=RATE)
  tx = make_optimizer(OptimizerConfig(), warm_start_schedule(warm))
  params = fitting.fit(MODEL, MODEL.init(jax.random.key(seed)),
                       fitting.supervised(task, width, range(STEPS)), tx).params
  rows = list(fitting.supervised(task, width, range(FIRST, FIRST + ROWS + REPORTED)))
  return Pruned(params, pruning.channel_scores(params, SHAPE), rows)


def one_seed(seed: int) -> dict:
  """Returns the loss of each allocation on the reported rows, and the allocations."""
  case = trained(seed)
  priorities = {"uniform": np.zeros(LAYERS), "random search": random_search(case, seed)}
  for name, curriculum in (("policy, no curriculum", False), ("policy, curriculum", True)):
    priorities[name] = search(case, seed, curriculum=curriculum)
  kept = {"dense": WIDTHS} | {name: case.kept(one, TARGET) for name, one in priorities.items()}
  losses = case.losses(list(kept.values()), slice(ROWS, None))
  seen = case.losses(list(kept.values()), slice(ROWS))
  return {"kept": {name: one.tolist() for name, one in kept.items()},
          "loss": dict(zip(kept, losses.tolist(), strict=True)),
          "loss_of_rewards": dict(zip(kept, seen.tolist(), strict=True))}


def by_allocation(results: list[dict]) -> str:
  """A row for each allocation: loss, perplexity, difference from uniform, seeds below uniform."""
  rows = []
  for name in results[0]["loss"]:
    loss = np.array([one["loss"][name] for one in results])
    less = loss - np.array([one["loss"]["uniform"] for one in results])
    loss_of_rewards = [one["loss_of_rewards"][name] for one in results]
    rows.append((name, interval(loss), interval(np.exp(loss)), interval(less),
                 f"{(less < 0).sum()} of {len(less)}", interval(loss_of_rewards)))
  return markdown_table(("channels", "loss, nats per token", "perplexity", "loss - uniform's",
                         "below uniform", "loss on the rows of the rewards"), rows)


def by_layer(results: list[dict]) -> str:
  """A row for each allocation: channels kept by layer."""
  rows = []
  for name in results[0]["kept"]:
    kept = np.array([one["kept"][name] for one in results])
    rows.append((name, *map(interval, kept.T), " ".join(sorted({str(n) for n in kept.sum(1)}))))
  return markdown_table(("channels kept", *(f"layer {n + 1}" for n in range(LAYERS)), "sum"), rows)


def write_tables(results: list[dict], page: Path) -> None:
  """Writes both tables into the page."""
  replace_part(page, "run.py, losses", by_allocation(results))
  replace_part(page, "run.py, channels", by_layer(results))


if __name__ == "__main__":
  seed_results.main(__doc__, HERE, SEEDS, one_seed, write_tables)
