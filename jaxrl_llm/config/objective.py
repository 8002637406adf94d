"""Sections that the loss depends on."""

import dataclasses
from typing import Any, ClassVar

from jaxrl_llm import registry
from jaxrl_llm.fields import ConfigError, derived, option, when
from jaxrl_llm.registry import Choice, Combination, Table, Together

WEIGHTED = when(".level", "token", "sequence")
TEACHER = when("reads_teacher", text="advantage.name=reverse_kl or term.name=distill")
CRITIC = when("has_critic", text="an advantage that needs values (gae)")


@dataclasses.dataclass(frozen=True, init=False)
class EstimatorConfig(Choice):
  """The estimator and its hyperparameters: `EstimatorConfig("gspo", clip_low=1e-3)`."""

  name: str = option("ppo", "importance-ratio estimator (objective/README.md)")
  table: ClassVar[Table] = registry.ESTIMATORS


@dataclasses.dataclass(frozen=True, init=False)
class AdvantageConfig(Choice):
  """The advantage and its hyperparameters: `AdvantageConfig("gae", lam=0.95)`."""

  name: str = option("grpo", "advantage: which baseline, or a critic (objective/README.md)")
  table: ClassVar[Table] = registry.ADVANTAGES

  @property
  def needs(self) -> frozenset[str]:
    """Returns the optional AdvantageInputs fields and columns that it reads."""
    return self.table[self.name].required(self.table.numbers(self, strict=False))

  def check(self, cfg) -> None:
    """Refuses groups that are too small for a method that compares their rows, and what no other
    key makes the run compute.
    """
    size, dynamic = cfg.rollout.group_size, cfg.dynamic_sampling.enabled
    if self.table[self.name].group and size < 2:
      raise ConfigError(
          f"rollout.group_size = {size}: advantage.name = {self.name!r} compares rows of a group. "
          "Fix: rollout.group_size >= 2, or advantage.name=none.")
    if getattr(self, "k", 0) >= max(size, 2):
      raise ConfigError(
          f"advantage.k = {self.k} with rollout.group_size = {size}: a group has not more than one "
          "set of that many rows, so every advantage would be 0. Fix: advantage.k below "
          "rollout.group_size.")
    if dynamic and size < 2:
      raise ConfigError(
          f"dynamic_sampling.enabled = True with rollout.group_size = {size}: a group of one is "
          "always constant. Fix: rollout.group_size >= 2.")
    if "ref_log_probs" in self.needs and not cfg.kl.coef:
      raise ConfigError(
          f"kl.coef = {cfg.kl.coef}: advantage.name = {self.name!r} reads the reference's "
          "log-probs, which are computed only with a KL term. Fix: kl.coef=1e-6 or more.")
    changes = {f"shaping.name = {cfg.shaping.name!r}": cfg.shaping.name != "none",
               f"shaping.overlong_buffer = {cfg.shaping.overlong_buffer}":
                 cfg.shaping.overlong_buffer > 0,
               "task.shuffle_rewards = True": cfg.task.shuffle_rewards}
    changing = [key for key, holds in changes.items() if holds]
    if changing and "reward_parts" in self.needs:
      raise ConfigError(
          f"{' and '.join(changing)} with advantage.name = {self.name!r}, which reads the parts of "
          "a reward: the change belongs to none of them. Fix: a component of a reward of your own "
          "instead, or another advantage.")


@dataclasses.dataclass(frozen=True, init=False)
class AggregationConfig(Choice):
  """The weighting of tokens in the loss, and its number: `AggregationConfig("fixed", 1024)`."""

  name: str = option("token", "weighting of the tokens of an optimizer batch")
  table: ClassVar[Table] = registry.AGGREGATIONS

  def __init__(self, name: str | None = None, fixed_length: int | None = None, given: tuple = ()):
    super().__init__(name, given, **({} if fixed_length is None else {
        "fixed_length": fixed_length
    }))


@dataclasses.dataclass(frozen=True)
class CorrectionConfig:
  """Importance weights anchor / behavior (without gradient), rejection, and the sequence mask."""

  level: str = option("none",
                      "ratio that weighs a token: its own, or the product over its completion",
                      choices=("none", "token", "sequence"))
  cap: float | None = option(2.0, "largest weight; none: unbounded", low=0.0, when=WEIGHTED)
  low: float | None = option(
      None, "sets a weight outside [low, cap] to 0 instead of truncating it (IcePop)", low=0.0,
      when=WEIGHTED)
  batch_normalize: bool = option(False, "divides the weights by their mean over the batch",
                                 when=WEIGHTED)
  reject: tuple = option((),
                         "rules (name, low, high) that reject tokens or completions by the ratio "
                         "anchor / behavior (objective/correction.py)", of=tuple)
  sequence_delta: float | None = option(
      None,
      "drops completions with a negative advantage whose mean log(anchor / current) is larger than "
      "this, nats per token (DeepSeek-V3.2)")

  def check(self, cfg) -> None:
    """Refuses a weight that corrects what a ratio to the behavior policy corrects already."""
    set_rules = [n for n in ("level", "reject") if getattr(self, n) not in ("none", ())]
    if cfg.updates.anchor == "behavior" and set_rules:
      raise ConfigError(
          f"correction.{set_rules[0]} = {getattr(self, set_rules[0])!r} with updates.anchor = "
          "'behavior': the ratio corrects for the behavior policy already, a weight would count it "
          "twice. Fix: correction.level=none without reject, or updates.anchor=recomputed.")


@dataclasses.dataclass(frozen=True)
class KLConfig:
  """The KL divergence from the reference policy, which is the run's start."""

  name: str = option("k3", "estimator of KL(policy || reference)",
                     choices=("k1", "k2", "k3", "k1+", "k3+"), when=when(".coef"))
  coef: float = option(0.0, "weight of the KL term; 0: none", low=0.0)
  place: str = option("loss", "loss: added to the loss; reward: taken from each token's reward",
                      choices=("loss", "reward"), when=when(".coef"))
  importance: bool = option(False, "multiplies the term by the ratio current / behavior "
                            "(DeepSeek-V3.2)", when=(when(".coef"), when(".place", "loss")))


@dataclasses.dataclass(frozen=True)
class TeacherConfig:
  """A better policy, or several, whose log-probs of the policy's own completions are read."""

  pretrained: str = option("", "Hugging Face checkpoint directory or hub name of the teacher; its "
                           "tokenizer is the policy's; several, each for its own problems, by "
                           "commas with names: math=runs/a,code=runs/b (task.data.teacher_column)",
                           when=TEACHER)

  @property
  def several(self) -> bool:
    """Returns whether each problem names its teacher."""
    return "," in self.pretrained

  @property
  def by_name(self) -> dict[str, str]:
    """Returns {name: checkpoint}; a teacher of all problems has the name "".

    Raises:
      ConfigError: one of several has no name, no checkpoint, or the name of another.
    """
    if not self.several:
      return {"": self.pretrained} if self.pretrained else {}
    checkpoints: dict[str, str] = {}
    for entry in self.pretrained.split(","):
      name, _, checkpoint = (part.strip() for part in entry.partition("="))
      if not name or not checkpoint or name in checkpoints:
        problem = f"the name {name!r} twice" if name in checkpoints else f"the entry {entry!r}"
        raise ConfigError(f"teacher.pretrained = {self.pretrained!r} has {problem}; several "
                          "teachers are NAME=CHECKPOINT with commas between. Fix: such as "
                          "teacher.pretrained=math=runs/a,code=runs/b.")
      checkpoints[name] = checkpoint
    return checkpoints


@dataclasses.dataclass(frozen=True)
class EntropyConfig:
  """The entropy bonus."""

  coef: float = option(0.0, "weight of the entropy bonus in the loss", low=-100.0, high=100.0)


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """The value head, trained with the policy where the advantage needs values."""

  coef: float = option(0.5, "weight of the value loss", low=0.0, when=CRITIC)
  clip: float | None = option(
      None, "keeps values within this distance of the rollout's in the value loss (PPO)", low=0.0,
      when=CRITIC)
  bounded: bool = option(False, "values are 1/2 + atan(z) / pi, for rewards of 0 to 1 (BPCO)",
                         when=CRITIC)
  first: int = option(0, "optimizer steps at the start without the estimator's loss: the critic "
                      "learns first, as do KL and entropy where they are on", low=0, when=CRITIC)


@dataclasses.dataclass(frozen=True, init=False)
class TermConfig(Choice):
  """Further terms of the loss: `TermConfig("brevity", coef=0.1)`."""

  name: str = option("none", "further terms of the loss, comma-separated (objective/terms.py); "
                     "none: only those of kl, entropy and critic")
  table: ClassVar[Combination] = registry.LOSS_TERMS


@dataclasses.dataclass(frozen=True, init=False)
class VocabularyConfig(Choice):
  """Restricts the policy to the tokens that rules keep, and renormalises it over them.

  The rules are those of ops/vocabulary.py, each a key: `VocabularyConfig(min_p=0.05)`. Only min_p
  is dynamic vocabulary pruning (DVP): it keeps the tokens with p >= min_p * max p.
  """

  name: str = derived("", "all rules")
  side: str = option(
      "both", "ablation: prunes only the sampler, or only the trainer, which biases the ratio",
      choices=("both", "sampler", "trainer"),
      when=when(".rules", text="vocabulary.top_k, top_p or another rule set"))
  table: ClassVar[Together] = registry.VOCABULARY

  @property
  def rules(self) -> dict[str, Any]:
    """Returns the rules that prune, as arguments of ops/vocabulary.py."""
    return {name: value for name, value in self.given
            if value != self.table[name].keeps_all}

  def rules_of(self, side: str) -> dict[str, Any]:
    """Returns `rules` as far as they apply to a side, `sampler` or `trainer`."""
    return self.rules if self.side in ("both", side) else {}


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """Options of `policy_loss`.

  Attributes:
    pruning: the rules of VocabularyConfig that apply to the trainer, as (name, value).
    min_new_tokens, stop_ids: the stop tokens are banned before this many completion tokens.
    max_new_tokens: only this many columns after a row's prompt are scored. None: all columns.
    term: the terms in addition to kl, entropy and critic. None: there is none.
    mtp_coef: weight in `sft_loss` of the module that predicts two tokens ahead. None: the model has
      no such module, or `policy_loss` is meant.
  """

  estimator: EstimatorConfig = EstimatorConfig()
  kl: KLConfig = KLConfig()
  entropy: EntropyConfig = EntropyConfig()
  temperature: float = 1.0
  correction: CorrectionConfig = CorrectionConfig()
  critic: CriticConfig | None = None
  pruning: tuple = ()
  num_experts: int = 0
  min_new_tokens: int = 0
  stop_ids: tuple[int, ...] = ()
  max_new_tokens: int | None = None
  term: TermConfig | None = None
  mtp_coef: float | None = None

  @property
  def rules(self) -> dict[str, Any]:
    """Returns the rules that prune, as arguments of ops/vocabulary.py."""
    return dict(self.pruning)


@dataclasses.dataclass(frozen=True)
class BatchConfig:
  """Options of `optimizer_batches`."""

  group_size: int
  parts: int
  advantage: AdvantageConfig = AdvantageConfig()
  aggregation: AggregationConfig = AggregationConfig()
  correction: CorrectionConfig = CorrectionConfig()
  kl: KLConfig = KLConfig()
  term_columns: tuple[str, ...] = ()
