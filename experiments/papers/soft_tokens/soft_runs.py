"""Training and evaluation of policies that think in tokens or in vectors.

REINFORCE with the leave-one-out baseline on fresh rows, one update for each batch:

  loss = -(1 / (B G)) sum_b sum_g A_bg sum_t log pi

Everything lies on one device.

Source: Soft Tokens, Hard Truths, arXiv 2509.19170.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.papers.soft_tokens.mixtures import (
  ANSWER,
  FUZZY,
  SoftBatch,
  SoftRollout,
  ThoughtMode,
  hard_thought,
  soft_thought,
)
from experiments.papers.soft_tokens.sampler import SoftSamplerConfig, generate_soft
from experiments.papers.soft_tokens.soft_loss import soft_loss
from jaxrl_llm.config import (
  AdvantageConfig,
  AggregationConfig,
  OptimizerConfig,
  StepConfig,
)
from jaxrl_llm.models import Model
from jaxrl_llm.objective import advantages
from jaxrl_llm.objective.aggregation import loss_weights
from jaxrl_llm.runs.rollout_batch import iteration_key, prompt_batch
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.train_step import init_state, train_step
from jaxrl_llm.types import AdvantageInputs, Problem, Sampling, Task, TrainState

RIGHT, WRONG, NO_ANSWER = 100.0, 10.0, 0.0  # the source's rewards
EVALUATION = 2**30  # row ids of evaluations begin here, so that they share no noise with training


@dataclasses.dataclass(frozen=True)
class Training:
  """Settings of a training run.

  Attributes:
    updates: optimizer updates, one for each batch of fresh rows.
    prompts: B, prompts of a batch.
    group_size: G, rows of a prompt.
    learning_rate: peak; it rises over `warmup` updates and falls to 0 by a cosine.
    warmup: updates.
    max_grad_norm: global norm to which gradients are clipped.
    answer_temperature: sampling temperature of the answers' tokens.
    thoughts: False: only answers are trained, a control that shows what thoughts add.
  """

  updates: int = 300
  prompts: int = 4
  group_size: int = 16
  learning_rate: float = 1e-4
  warmup: int = 20
  max_grad_norm: float = 1.0
  answer_temperature: float = 1.0
  thoughts: bool = True

  def optimizer(self) -> optax.GradientTransformation:
    """Returns AdamW after the clip, with the schedule."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, self.learning_rate, self.warmup,
                                                  self.updates)
    return make_optimizer(OptimizerConfig(max_grad_norm=self.max_grad_norm), schedule)


def modes(sigma: float) -> dict[str, ThoughtMode]:
  """Returns the source's three ways to sample thoughts in training."""
  return {"hard": hard_thought(1.0), "fuzzy": soft_thought(sigma, FUZZY),
          "soft": soft_thought(sigma)}


def inference_modes(sigma: float) -> dict[str, ThoughtMode]:
  """Returns the source's six inference settings; answers are greedy in all of them."""
  sampled = {f"{name} sampled": mode for name, mode in modes(sigma).items()}
  return {"hard greedy": hard_thought(0.0), "fuzzy greedy": soft_thought(0.0, FUZZY),
          "soft greedy": soft_thought(0.0), **sampled}


@functools.lru_cache(maxsize=8)
def sampler(model: Model, cfg: SoftSamplerConfig):
  """Returns `generate_soft` compiled."""
  return jax.jit(functools.partial(generate_soft, model=model, cfg=cfg))


@functools.lru_cache(maxsize=8)
def updater(model: Model, cfg: Training):
  """Returns one compiled update, (state, sampled, rewards [B G], mode) -> (state, metrics)."""

  def update(state: TrainState, sampled: SoftRollout, rewards, mode: ThoughtMode):
    batch = batch_of(sampled, rewards, mode, cfg.answer_temperature, thoughts=cfg.thoughts)
    return train_step(state, batch, loss=soft_loss, model=model, tx=cfg.optimizer(),
                      cfg=StepConfig())

  return jax.jit(update)


def batch_of(sampled: SoftRollout, rewards, mode: ThoughtMode, answer_temperature: float, *,
             thoughts: bool = True) -> SoftBatch:
  """Returns the batch of an update: RLOO advantages, and weights whose loss is the sum over tokens
  and the mean over rows. Without `thoughts`, these weigh nothing.
  """
  rollout = sampled.rollout
  inputs = AdvantageInputs(rewards=rewards, mask=rollout.mask, tokens=rollout.tokens,
                           group_id=rollout.group_id)
  rloo = advantages.get_advantage("rloo")(inputs, AdvantageConfig("rloo"))
  weights = loss_weights(rollout.mask, None, None, AggregationConfig("sequence_sum"))
  if not thoughts:
    weights = jnp.where(rollout.turn_id == ANSWER, weights, 0)
  return SoftBatch(sampled, rloo, weights, mode, jnp.float32(answer_temperature))


def graded(task: Task, problems: list[Problem], sampled: SoftRollout
           ) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rewards [B] f32 of rows, and whether each is right [B] bool.

  A right answer gets RIGHT, a wrong one that is complete and not empty WRONG, and none NO_ANSWER.

  Args:
    problems: one for each group of rows, in their order.
  """
  rollout = jax.device_get(sampled.rollout)
  group_size = len(rollout.length) // len(problems)
  rewards, correct = [], []
  for row, tokens in enumerate(rollout.tokens):
    problem = problems[row // group_size]
    completion = tokens[rollout.prompt_length[row]:rollout.length[row]]
    text = task.tokenizer.decode(completion, skip_special_tokens=True)
    answered = np.sum(rollout.turn_id[row] == ANSWER) > 1 and not rollout.truncated[row]
    correct.append(task.reward(problem, text).correct)
    rewards.append(RIGHT if correct[-1] else WRONG if answered else NO_ANSWER)
  return np.array(rewards, np.float32), np.array(correct)


class Policy(NamedTuple):
  """A network, and how it is sampled from."""

  model: Model
  sampling: SoftSamplerConfig


def train(params, task: Task, mode: ThoughtMode, cfg: Training, *, policy: Policy,
          seed: int) -> tuple[dict, list[float]]:
  """Returns the trained parameters, and the share of right rows in the batch of each update.

  Args:
    params: to start from.
    task: its batches have `cfg.prompts` problems.
    mode: kind of the thoughts.
    policy: its group size is replaced by `cfg`'s.
    seed: seed of the rows' noise.
  """
  sampling = dataclasses.replace(policy.sampling, group_size=cfg.group_size)
  sample, update = sampler(policy.model, sampling), updater(policy.model, cfg)
  state, rows, right = init_state(params, cfg.optimizer()), cfg.prompts * cfg.group_size, []
  for index in range(cfg.updates):
    problems = task.batch(index)
    prompts = prompt_batch(task, problems, task.longest_prompt(), group_size=cfg.group_size,
                           first_row=index * rows)
    sampled = sample(state.params, prompts, iteration_key(seed, index),
                     (mode, Sampling.of(cfg.answer_temperature)))
    rewards, correct = graded(task, problems, sampled)
    right.append(float(np.mean(correct)))
    state, _ = update(state, sampled, rewards, mode)
  return state.params, right


def evaluate(params, task: Task, problems: list[Problem], mode: ThoughtMode, *, policy: Policy,
             seed: int = 0) -> np.ndarray:
  """Returns whether each sample of each problem is right, [problems, group size] bool.

  Answers are greedy. A greedy thought needs one sample.
  """
  samples = policy.sampling.group_size
  first_row = EVALUATION // samples * samples  # a multiple of the group size
  prompts = prompt_batch(task, problems, task.longest_prompt(), group_size=samples,
                         first_row=first_row)
  sample = sampler(*policy)
  sampled = sample(params, prompts, jax.random.key(seed), (mode, Sampling.of(0.0)))
  return graded(task, problems, sampled)[1].reshape(len(problems), samples)
