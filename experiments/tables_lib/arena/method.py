"""The objective of a run of the arena."""

import dataclasses

from jaxrl_llm.config import (
  AdvantageConfig,
  AggregationConfig,
  CorrectionConfig,
  EstimatorConfig,
  TransformConfig,
)


@dataclasses.dataclass(frozen=True)
class Method:
  """The objective of a run of the arena, static and hashable.

  Attributes:
    text: the text that named it.
    anchor: denominator of the ratio, `behavior` or `recomputed`: the policy at the start of the
      iteration. Only the latter has a correction.
    signed: whether a reward R counts as 2 R - 1.
  """

  label: str
  text: str
  estimator: EstimatorConfig
  advantage: AdvantageConfig
  aggregation: AggregationConfig
  transform: TransformConfig
  correction: CorrectionConfig
  anchor: str
  signed: bool
