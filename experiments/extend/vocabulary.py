"""A rule that restricts the policy's vocabulary, for sampler, scorer and loss alike.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/extend_rule \
    --config.plugins=experiments/extend/vocabulary.py --config.vocabulary.epsilon=0.01

The number is the key. `vocabulary/kept_mass` of metrics.jsonl is the probability of the tokens that
were kept, `vocabulary/out_of_set` the share of sampled tokens that the loss's policy leaves out.
"""

import jax

from jaxrl_llm import register


@register.vocabulary("epsilon", 0.0, "keeps tokens of at least this probability; 0: all", low=0.0,
                     high=1.0)
def epsilon(logits, value):
  """Keeps p >= epsilon.

  The logits [..., V] are divided by the temperature, and tokens that earlier rules left out have
  probability 0. The most likely token is kept in any case.

  Source: epsilon sampling, arXiv 2210.15191.
  """
  return jax.nn.softmax(logits, -1) >= value
