"""Everything that the loss depends on."""

import dataclasses

from jaxrl_llm.fields import DEFAULT, Number, number, option


@dataclasses.dataclass(frozen=True)
class EstimatorConfig:
  """Name of the importance-ratio estimator and the numbers it reads; the registry declares which.
  """

  name: str = option("ppo", "registered estimator")
  clip_low: Number = number("ratio window [1 - clip_low, 1 + clip_high]", low=0.0)
  clip_high: Number = number("ratio window [1 - clip_low, 1 + clip_high]", low=0.0)
  dual_clip: Number = number("ratio above which negative advantages get no gradient", low=1.0)
  log_low: Number = number("CTPO window in log space: -log_low * t^power", low=0.0)
  log_high: Number = number("CTPO window in log space: +log_high * t^power", low=0.0)
  log_dual: Number = number("CTPO upper bound for negative advantages: log_dual * t^power", low=0.0)
  power: Number = number("CTPO exponent of the position t", low=-4.0, high=4.0)
  cap: Number = number("truncation of a sequence ratio from above", low=0.0)
  tau: Number = number("M2PO bound on the mean squared log-ratio", low=0.0)
  tau_pos: Number = number("SAPO temperature where the advantage is positive", low=1e-6)
  tau_neg: Number = number("SAPO temperature elsewhere", low=1e-6)
  delta_low: Number = number("DPPO divergence beyond which a negative advantage stops pushing down",
                             low=0.0)
  delta_high: Number = number("DPPO divergence beyond which a positive advantage stops pushing up",
                              low=0.0)
  ratio_cap: Number = number("DPPO truncation of the token ratio", low=0.0)
  d: Number = number("CPPO budget of one token", low=0.0)
  d_b: Number = number("CPPO budget per unit of position weight", low=0.0)
  w_min: Number = number("CPPO position weight of the last token", low=0.0, high=1.0)
  k: Number = number("VESPO exponent of the ratio for positive advantages, decay for negative",
                     low=0.0)
  lam: Number = number("VESPO decay for positive advantages, exponent of the ratio for negative",
                       low=0.0)
  beta: Number = number("DRO weight of the squared log-ratio", low=0.0)
  cap_at_one: bool | str = option(DEFAULT, "MinPRO: the prefix minimum never exceeds a ratio of 1")
  m2_scope: str = option(
      DEFAULT, "M2PO: tokens that may be dropped; `away`: only those moving from the anchor",
      choices=(DEFAULT, "all", "away"))


@dataclasses.dataclass(frozen=True)
class AdvantageConfig:
  name: str = option("grpo", "registered advantage")
  epsilon: float = option(1e-6, "grpo, tempo: added to the group standard deviation", low=0.0)
  ddof: int = option(1, "grpo, tempo: 1: Bessel's standard deviation (verl, TRL); 0: population",
                     low=0, high=1)
  normalize: bool = option(True, "tempo: divide by the group standard deviation")
  weight: str = option("cumulative", "otb: gradient energy up to t, of t alone, or 1",
                       choices=("cumulative", "step", "uniform"))
  granularity: str = option("step",
                            "otb: what shares a baseline: position, turn, or the whole sequence",
                            choices=("step", "turn", "sequence"))
  importance: str = option("none", "otb: where the squared correction weight enters the energy",
                           choices=("none", "inside_cumsum", "outside"))
  zero_tail: bool = option(True, "otb: no baseline where a single row of the group is left")
  leave_one_out: bool = option(False, "otb: a row's own reward stays out of its baseline")
  gamma: float = option(1.0, "reinforce_pp, gae: discount per policy token", low=0.0, high=1.0)
  lam: float = option(1.0, "gae: lambda, decay of the temporal-difference errors", low=0.0,
                      high=1.0)
  whiten: bool = option(
      True, "gae, reinforce_pp(_baseline): mean 0 and variance 1 over the batch's policy tokens")


@dataclasses.dataclass(frozen=True)
class AggregationConfig:
  name: str = option(
      "token", "weighting of tokens over the optimizer batch",
      choices=("token", "token_sum", "sequence", "sequence_sum", "fixed", "balanced"))
  fixed_length: int | None = option(None,
                                    "divisor of `fixed`, tokens; unset: rollout.max_new_tokens",
                                    low=1)


@dataclasses.dataclass(frozen=True)
class CorrectionConfig:
  """Constant importance weights anchor / behavior, rejection by them, and the sequence mask."""

  level: str = option("none", "ratio that weighs a token: its own, or the product over its row",
                      choices=("none", "token", "sequence"))
  cap: float | None = option(2.0, "largest weight; none: unbounded", low=0.0)
  low: float | None = option(None,
                             "IcePop: a weight outside [low, cap] becomes 0 instead of truncated",
                             low=0.0)
  batch_normalize: bool = option(False, "divide the weights by their mean over the batch")
  reject: tuple = option(
      (), "rules (name, low, high) on anchor / behavior; see objective/correction.py", of=tuple)
  sequence_delta: float | None = option(
      None, "drop rows with negative advantage whose mean log(anchor / current) "
      "exceeds this (DeepSeek-V3.2)")


@dataclasses.dataclass(frozen=True)
class KLConfig:
  name: str = option("k3", "estimator of KL(policy || reference)",
                     choices=("k1", "k2", "k3", "k1+", "k3+"))
  coef: float = option(0.0, "weight of the KL term; 0: none", low=0.0)
  place: str = option("loss", "added to the loss, or taken from the reward of each token",
                      choices=("loss", "reward"))
  importance: bool = option(False, "loss: multiply by the ratio current / behavior (DeepSeek-V3.2)")


@dataclasses.dataclass(frozen=True)
class EntropyConfig:
  coef: float = option(0.0, "weight of the entropy bonus in the loss", low=-100.0, high=100.0)


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """Value head, trained beside the policy; read by advantage.name=gae."""

  coef: float = option(0.5, "weight of the value loss", low=0.0)
  clip: float | None = option(None,
                              "values stay within this of the rollout's in the value loss (PPO)",
                              low=0.0)


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
  """The policy is renormalised over the tokens that these rules keep, applied in this order
  (ops/vocabulary.py).

  min_p alone is dynamic vocabulary pruning (DVP): the tokens with p >= min_p * max p.
  """

  top_k: int = option(0, "the k most likely tokens; 0: all", low=0)
  top_p: float = option(1.0, "the most likely tokens that reach this mass; 1: all", low=1e-6,
                        high=1.0)
  min_p: float = option(0.0, "threshold relative to the top probability; 0: the whole vocabulary",
                        low=0.0, high=1.0)
  side: str = option(
      "both", "ablation: prune only the sampler, or only the trainer, which biases the ratio",
      choices=("both", "sampler", "trainer"))

  @property
  def rules(self) -> dict[str, float]:
    """Those that prune: arguments of ops/vocabulary.py."""
    return _pruning(self)


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """What `policy_loss` reads.

  Attributes:
    top_k, top_p, min_p: of the trainer's side of VocabularyConfig.
    min_new_tokens, stop_ids: the policy has no stop token before this many completion tokens.
    max_new_tokens: columns behind a row's prompt that may hold sampled tokens; others are not
      scored. None: all may.
  """

  estimator: EstimatorConfig = EstimatorConfig()
  kl: KLConfig = KLConfig()
  entropy: EntropyConfig = EntropyConfig()
  temperature: float = 1.0
  correction: CorrectionConfig = CorrectionConfig()
  critic: CriticConfig | None = None
  min_p: float = 0.0
  num_experts: int = 0
  top_k: int = 0
  top_p: float = 1.0
  min_new_tokens: int = 0
  stop_ids: tuple[int, ...] = ()
  max_new_tokens: int | None = None

  @property
  def rules(self) -> dict[str, float]:
    """Those that prune: arguments of ops/vocabulary.py."""
    return _pruning(self)


@dataclasses.dataclass(frozen=True)
class BatchConfig:
  """What `optimizer_batches` reads."""

  group_size: int
  parts: int
  advantage: AdvantageConfig = AdvantageConfig()
  aggregation: AggregationConfig = AggregationConfig()
  correction: CorrectionConfig = CorrectionConfig()
  kl: KLConfig = KLConfig()


def _pruning(cfg: VocabularyConfig | LossConfig) -> dict[str, float]:
  return {name: getattr(cfg, name) for name, off in (("top_k", 0), ("top_p", 1), ("min_p", 0))
          if getattr(cfg, name) != off}
