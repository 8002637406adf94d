"""The functions that sample, as a run calls them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import jax

from jaxrl_llm.types import Params, Problem, PromptBatch, Rollout, Sampling

if TYPE_CHECKING:  # only runs whose rows continue load it
  from jaxrl_llm.rollouts.in_flight import InFlight, Unfinished

Problems = Mapping[int, Problem]


class PrepareFn(Protocol):
  """Prepares parameters for `Sampler.sample`."""

  def __call__(self, params: Params) -> Params: ...


class SampleFn(Protocol):
  """Samples `rollout.group_size` rows of each prompt; the metrics are host values.

  An environment may read `problems`, the problem of each row id.
  """

  def __call__(self, params: Params, prompts: PromptBatch, key: jax.Array, sampling: Sampling,
               problems: Problems | None = None) -> tuple[Rollout, dict[str, float]]: ...


class InFlightFn(Protocol):
  """As `SampleFn`, with rows of an earlier call; see `engine.run_on`."""

  def __call__(self, params: Params, prompts: PromptBatch, key: jax.Array, sampling: Sampling,
               in_flight: "InFlight", problems: Problems
               ) -> tuple[Rollout, "Unfinished", dict[str, float]]: ...


class HeldoutFn(Protocol):
  """Samples one completion per row; `problems` as in `SampleFn`.

  Each `group_size` contiguous rows have one prompt, which is then computed once.
  """

  def __call__(self, params: Params, prompts: PromptBatch, key: jax.Array, sampling: Sampling,
               problems: Problems | None = None, group_size: int = 1) -> Rollout: ...
