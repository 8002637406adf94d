"""What a loss of the head that predicts two tokens ahead needs of the rest of a run."""

from jaxrl_llm.config import Config, ConfigError
from jaxrl_llm.objective import estimators, mtp


def check(cfg: Config) -> None:
  """Refuses what the head cannot be trained with.

  Raises:
    ConfigError: naming the keys and a change that works.
  """
  if not cfg.has_mtp:
    return
  name, updates = f"mtp.name = {cfg.mtp.name!r}", cfg.updates
  if updates.shared_prompts:
    raise ConfigError(
        f"{name} with updates.shared_prompts = True: the shared token before the last one of a "
        "prompt would have to predict another token for each row. Fix: "
        "updates.shared_prompts=False.")
  if cfg.loss.rules:
    raise ConfigError(
        f"{name} with vocabulary.{next(iter(cfg.loss.rules))} set: the tokens that the rule "
        "keeps of the head's distribution are others than the policy's. Fix: no rule of "
        "vocabulary, or mtp.name=none.")
  if cfg.pipo.enabled:
    raise ConfigError(f"{name} with pipo.enabled = True: the head has no anchor in the batch that "
                      "is replayed. Fix: pipo.enabled=False, or mtp.name=none.")
  if mtp.reads_anchor(cfg.mtp):
    _check_anchor(cfg, name)
  if mtp.is_calibrated(cfg.mtp) and updates.optimizer_batches == 1:
    raise ConfigError(
        f"{name} with updates.optimizer_batches = 1: in a rollout's first optimizer batch the "
        "policy is its own anchor, nothing has changed, and the coefficient would stay at 0, where "
        "it begins. Fix: updates.optimizer_batches of 2 or more, or mtp.name=policy.")


def _check_anchor(cfg: Config, name: str) -> None:
  """A loss that compares the head with its anchor."""
  if cfg.updates.anchor == "behavior":
    raise ConfigError(
        f"{name} with updates.anchor = 'behavior': the sampler computes no log-probs of the head. "
        "Fix: updates.anchor=recomputed.")
  if estimators.spec(cfg.estimator.name).batch_statistics:
    raise ConfigError(
        f"{name} with estimator.name = {cfg.estimator.name!r}, whose weights are a statistic of "
        "the policy's log-probs, not of the head's. Fix: another estimator, or mtp.name=ce.")
