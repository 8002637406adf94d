"""Tabular policies over a token tree, small enough to enumerate: expectations are sums.

A case may have leading axes (drifts, instances); every function broadcasts over them. All arrays
are float64, on the host. Sequences have one turn and no prompt, so `mask` is True from position 0
to the end of the sequence. The formulas are own derivations; they hold for any softmax policy.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
  """Every sequence of a vocabulary up to a horizon.

  Attributes:
    tokens: [N, T] int32; 0 after the end.
    mask: [N, T] bool.
    node: [N, T] int32, index of the prefix before the token; 0 after the end.
    num_nodes: number of prefixes.
    vocabulary: V.
  """

  tokens: np.ndarray
  mask: np.ndarray
  node: np.ndarray
  num_nodes: int
  vocabulary: int


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
  """A target policy pi, a behavior policy mu, and outcome rewards.

  Attributes:
    tree: the sequences.
    target_logits, behavior_logits: [..., num_nodes, V].
    rewards: [..., N].
  """

  tree: Tree
  target_logits: np.ndarray
  behavior_logits: np.ndarray
  rewards: np.ndarray


def make_tree(vocabulary: int, horizon: int, *, stop: bool = False) -> Tree:
  """Enumerates the sequences.

  Args:
    vocabulary: V, at least 2.
    horizon: T, the largest length.
    stop: whether the last token of the vocabulary ends a sequence; otherwise every length is T.

  Raises:
    ValueError: a vocabulary below 2 or a horizon below 1.
  """
  if vocabulary < 2 or horizon < 1:
    raise ValueError(f"vocabulary {vocabulary} and horizon {horizon}: at least 2 and 1 are needed.")
  # Rows are the unfinished sequences of length t, and the indices of the prefixes on their way.
  prefixes, path, count, sequences = np.zeros((1, 0), np.int32), np.zeros((1, 0), np.int32), 0, []
  for t in range(horizon):
    ids = count + np.arange(len(prefixes), dtype=np.int32)
    count += len(prefixes)
    token = np.tile(np.arange(vocabulary, dtype=np.int32), len(prefixes))
    tokens = np.column_stack([np.repeat(prefixes, vocabulary, 0), token])
    nodes = np.column_stack([np.repeat(path, vocabulary, 0), np.repeat(ids, vocabulary)])
    ends = np.full(len(token), t == horizon - 1) | (stop & (token == vocabulary - 1))
    arrays = (tokens, nodes, np.ones_like(tokens, bool))
    sequences.append([np.pad(x[ends], ((0, 0), (0, horizon - 1 - t))) for x in arrays])
    prefixes, path = tokens[~ends], nodes[~ends]
  tokens, nodes, mask = (np.concatenate(pieces) for pieces in zip(*sequences, strict=True))
  return Tree(tokens, mask, nodes, count, vocabulary)


def random_case(tree: Tree, drifts, instances: int, seed: int) -> Case:
  """Returns a case with leading axes [drifts, instances].

    behavior logits ~ N(0, 1)
    target logits   = behavior logits + drift * N(0, 1)
    rewards         ~ Bernoulli(1/2), not all equal

  An instance has the same behavior policy, direction and rewards at every drift, as if the target
  had moved on from one batch of samples.
  """
  rngs = [np.random.default_rng([seed, i]) for i in range(instances)]
  behavior, direction = (np.asarray(
      [r.normal(size=(tree.num_nodes, tree.vocabulary)) for r in rngs]) for _ in range(2))
  rewards = [_binary_rewards(r, len(tree.tokens)) for r in rngs]
  drifts = np.asarray(drifts, np.float64)
  target = behavior + drifts[:, None, None, None] * direction
  return Case(tree, target, np.broadcast_to(behavior, target.shape),
              np.broadcast_to(rewards, (len(drifts), instances, len(tree.tokens))))


def select(case: Case, *index: int) -> Case:
  """Returns one entry of the leading axes."""
  return Case(case.tree, case.target_logits[index], case.behavior_logits[index],
              case.rewards[index])


def _binary_rewards(rng: np.random.Generator, count: int) -> np.ndarray:
  while True:
    rewards = rng.integers(0, 2, count).astype(np.float64)
    if 0 < rewards.sum() < count:
      return rewards


def log_softmax(logits: np.ndarray) -> np.ndarray:
  """Returns the log-probs of logits over the last axis."""
  offsets = logits - logits.max(-1, keepdims=True)
  return offsets - np.log(np.exp(offsets).sum(-1, keepdims=True))


def token_log_probs(tree: Tree, logits: np.ndarray) -> np.ndarray:
  """Returns the log-prob of each token, [..., N, T]; 0 after the end."""
  return np.where(tree.mask, log_softmax(logits)[..., tree.node, tree.tokens], 0.0)


def sequence_probs(tree: Tree, logits: np.ndarray) -> np.ndarray:
  """Returns the probability of each sequence, [..., N]; the sum over N is 1."""
  return np.exp(token_log_probs(tree, logits).sum(-1))


def policy_gradient(tree: Tree, logits: np.ndarray, rewards: np.ndarray) -> np.ndarray:
  """Returns the gradient of J = sum over sequences of pi(y) R(y), by autodiff.

  Args:
    logits: [..., num_nodes, V], of pi.
    rewards: [..., N].

  Returns:
    [..., num_nodes, V], over the logits.
  """

  def objective(logits, outcome):
    log_probs = jax.nn.log_softmax(logits)[tree.node, tree.tokens]
    return jnp.sum(jnp.exp(jnp.sum(jnp.where(tree.mask, log_probs, 0.0), -1)) * outcome)

  with jax.enable_x64(True):
    flat = jax.jit(jax.vmap(jax.grad(objective)))(_flat(logits, 2), _flat(rewards, 1))
  return np.asarray(flat).reshape(logits.shape)


def prefix_probs(tree: Tree, logits: np.ndarray) -> np.ndarray:
  """Returns the probability that the policy visits each prefix, [..., num_nodes]."""
  return edge_sum(tree, _every_token(tree, sequence_probs(tree, logits))).sum(-1)


def edge_values(tree: Tree, logits: np.ndarray, rewards: np.ndarray) -> np.ndarray:
  """Returns Q(s, a), [..., num_nodes, V]: the policy's expected reward after prefix and token."""
  probs = sequence_probs(tree, logits)
  reward_mass = edge_sum(tree, _every_token(tree, probs * rewards))
  return reward_mass / edge_sum(tree, _every_token(tree, probs))


def action_values(tree: Tree, logits: np.ndarray, rewards: np.ndarray) -> np.ndarray:
  """Returns Q(s_t, a_t) along every sequence, [..., N, T]; 0 after the end."""
  return np.where(tree.mask, edge_values(tree, logits, rewards)[..., tree.node, tree.tokens], 0.0)


def state_values(tree: Tree, logits: np.ndarray, rewards: np.ndarray) -> np.ndarray:
  """Returns V(s_t), the policy's expected reward before the token, [..., N, T]; 0 after the end."""
  values = np.sum(np.exp(log_softmax(logits)) * edge_values(tree, logits, rewards), -1)
  return np.where(tree.mask, values[..., tree.node], 0.0)


def edge_sum(tree: Tree, values: np.ndarray) -> np.ndarray:
  """Sums [..., N, T] over the sequences that share prefix and token: [..., num_nodes, V]."""
  size = tree.num_nodes * tree.vocabulary
  flat = _flat(np.where(tree.mask, values, 0.0), 2)
  index = np.arange(len(flat))[:, None, None] * size + tree.node * tree.vocabulary + tree.tokens
  sums = np.bincount(index.ravel(), flat.ravel(), minlength=len(flat) * size)
  return sums.reshape(*values.shape[:-2], tree.num_nodes, tree.vocabulary)


def _every_token(tree: Tree, values: np.ndarray) -> np.ndarray:
  """Repeats the value of each sequence, [..., N], at every column: [..., N, T]."""
  return np.broadcast_to(values[..., None], (*values.shape, tree.tokens.shape[1]))


def _flat(x: np.ndarray, keep: int) -> np.ndarray:
  """Merges all axes but the last `keep` into one."""
  return np.asarray(x).reshape(-1, *x.shape[x.ndim - keep:])
