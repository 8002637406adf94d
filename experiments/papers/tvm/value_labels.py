"""Labels of value models: how often the rows that begin alike ended right."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl_llm.ops import masked
from jaxrl_llm.ops.prefix_tree import prefix_means


def prefix_value_labels(tokens: Int[Array, "B L"], lengths: Int[Array, " B"],
                        rewards: Float[Array, " B"], group_ids: Int[Array, " B"]
                        ) -> Float[Array, "B L"]:
  """Returns, for each token, the mean reward of the rows of its group that begin like it does.

    label_t = sum_m [y^m_1..t = y_1..t] r_m / sum_m [y^m_1..t = y_1..t]

  It estimates V(y_1..t) without further samples, and without bias. After a row has become unique,
  it has its own reward. The tree is TEMPO's; prompts may come first, because the rows of a group
  share their prompt: the label of the prompt's last token is then the mean of the group.

  Args:
    tokens: [B, L], any ids from column `lengths` on.
    lengths: [B], tokens in the row.
    rewards: [B], finite; in [0, 1] the label is a probability.
    group_ids: [B], any integers in any order; rows of different groups share nothing.

  Returns:
    [B, L], 0 from column `lengths` on.

  Source: TVM, arXiv 2407.12863.
  """
  inside = jnp.arange(tokens.shape[1]) < lengths[:, None]
  means, _ = prefix_means(rewards, jnp.ones(len(rewards), bool), tokens, inside, group_ids)
  return masked.masked(means[:, 1:], inside)
