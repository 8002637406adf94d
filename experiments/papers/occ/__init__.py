"""OCC: losses of the module that predicts two tokens ahead, with a calibrated coefficient.

Importing the package enters the loss terms `mtp_ce`, `mtp_detach`, `mtp_policy` and `occ`, and the
column of the module's log-probs under the anchor.
"""

from experiments.papers.occ.losses import register as mtp
from jaxrl_llm.reporting.glossary import entries_of

METRICS = entries_of("""
mtp/loss             | 1     | loss of the head that predicts two ahead, mean over its tokens
mtp/log_prob         | nats  | log-prob of the sampled token under that head, mean over tokens
mtp/coefficient      | 1     | weight of that loss, mean over the updates
mtp/cosine           | 1     | between what updates changed of policy's and head's log-probs (occ)
""")

__all__ = ["METRICS", "mtp"]
