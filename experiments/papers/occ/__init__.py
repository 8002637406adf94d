"""OCC: losses of the module that predicts two tokens ahead, with a calibrated coefficient.

A plugin: `--config.plugins=experiments.papers.occ` enters the loss terms `mtp_ce`, `mtp_detach`,
`mtp_policy` and `occ`, and the column of the module's log-probs under the anchor. `occ.mtp` is the
decorator of a loss of your own.
"""

from experiments.papers.occ.losses import mtp
from jaxrl_llm import register

register.metrics("""
mtp/loss             | 1     | loss of the head that predicts two ahead, mean over its tokens
mtp/log_prob         | nats  | log-prob of the sampled token under that head, mean over tokens
mtp/coefficient      | 1     | weight of that loss, mean over the updates
mtp/cosine           | 1     | between what updates changed of policy's and head's log-probs (occ)
""")

__all__ = ["mtp"]
