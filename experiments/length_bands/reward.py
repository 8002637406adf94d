"""Pays for a completion whose length, as a share of the source's length, is inside a band.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/band_length \
    --config.plugins=experiments/length_bands/reward.py --config.reward.name=task,band_length

It is the length part of HOMURA's reward (arXiv 2601.10187), which translates within the time that
a sentence takes to speak. Lengths are in characters.
"""

import dataclasses
import math

from jaxrl_llm import register
from jaxrl_llm.fields import option

SHORT, SHORTEST = 12, 4  # characters of a source below, and up to, which the band is wider


@dataclasses.dataclass(frozen=True)
class BandLength:
  """The numbers of `band_length`. Defaults of the public code, for all languages."""

  low: float = option(0.8, "lowest ratio of lengths that is paid in full", low=0.0)
  high: float = option(0.9, "highest ratio of lengths that is paid in full", low=0.0)
  sharpness: float = option(100.0, "decay outside the band, per squared ratio", low=0.0)
  mode: str = option("far", "bound that the distance outside is measured from: the farther one, as "
                     "the published code does, or the nearest", choices=("far", "nearest"))
  wider: bool = option(True, "widens the band of short sources")
  length_weight: float = option(1.0, "weight of the component")


@register.reward("band_length", BandLength)
def band_length(problem, completion, cfg):
  """Returns the component `length`, and of weight 0 `ratio` and `inside`, which are only logged.

  The source is `problem.prompt`. Whether a row is correct is left to the task. An empty source and
  bounds in the wrong order raise ValueError.
  """
  source = len(problem.prompt)
  if not source:
    raise ValueError(f"problem {problem.id!r} has an empty prompt, so that no ratio of lengths "
                     "exists. Fix: problems with a source text")
  ratio = len(completion) / source
  low, high = band_of(source, cfg.low, cfg.high) if cfg.wider else (cfg.low, cfg.high)
  paid = band_length_reward(ratio, low, high, cfg.sharpness, cfg.mode)
  return {"length": (paid, cfg.length_weight), "ratio": (ratio, 0.0),
          "inside": (low <= ratio <= high, 0.0)}


def band_length_reward(ratio: float, low: float, high: float, sharpness: float = 100.0,
                       mode: str = "far") -> float:
  """Returns what a ratio of the completion's length to the source's earns, in [0, 1].

    1 for low <= ratio <= high;  else exp(-sharpness D^2)
    D = max(|ratio - low|, |ratio - high|)   mode "far"
    D = min(|ratio - low|, |ratio - high|)   mode "nearest"

  "far" is HOMURA (arXiv 2601.10187, public code): at an edge it falls from 1 to
  exp(-sharpness (high - low)^2) at once. "nearest" is our own variant, which is continuous.

  Raises:
    ValueError: bounds in the wrong order, or an unknown mode.
  """
  if not 0 <= low <= high:
    raise ValueError(f"reward.low = {low:g}, reward.high = {high:g}: 0 <= low <= high was expected")
  if mode not in ("far", "nearest"):
    raise ValueError(f"reward.mode = {mode!r}: allowed are 'far' and 'nearest'")
  if low <= ratio <= high:
    return 1.0
  distance = (max if mode == "far" else min)(abs(ratio - low), abs(ratio - high))
  return math.exp(-sharpness * distance**2)


def band_of(source: int, low: float, high: float) -> tuple[float, float]:
  """Returns the band of a source of so many characters: wider for short ones.

    [0.6 low, 1.4 high]                          up to 4 characters
    [low (0.4 + 0.5 sqrt(source / 12)), high]    below 12

  Source: public code of HOMURA (arXiv 2601.10187).
  """
  if source <= SHORTEST:
    return 0.6 * low, 1.4 * high
  if source < SHORT:
    return low * (0.4 + 0.5 * math.sqrt(source / SHORT)), high
  return low, high
