"""Several training sets in one stream of problems, by weight."""

import dataclasses

import numpy as np

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.tasks.data import AUTO, DataConfig, names
from jaxrl_llm.tasks.order import row_at

PERIOD = 1000  # positions after which the sources follow each other in the same order again


@dataclasses.dataclass(frozen=True)
class Mixture:
  """The order of problems in the stream of several sources.

  In each PERIOD positions every source has its share, to the nearest position, in a shuffled order
  that the seed decides. Within a source each problem comes once per epoch of that source. There is
  no state: only position p decides.

  Attributes:
    sizes: problems of each source, at least one.
    pattern: [PERIOD] source of each position.
  """

  sizes: tuple[int, ...]
  pattern: np.ndarray

  @classmethod
  def of(cls, sizes: list[int], weights: tuple[float, ...], seed: int) -> "Mixture":
    """Makes a mixture.

    Args:
      weights: one per source, positive; they need not add up to 1. Empty: the sizes.

    Raises:
      ConfigError: a source would never be asked.
    """
    parts = np.array(weights or sizes, np.float64)
    ends = np.round(np.cumsum(parts) / parts.sum() * PERIOD).astype(int)
    if not np.diff(ends, prepend=0).all():
      source = int(np.argmin(np.diff(ends, prepend=0)))
      share = parts[source] / parts.sum()
      raise ConfigError(
          f"task.data.path: file {source + 1} of {len(sizes)} has {share:.2g} of the weight, less "
          f"than one problem in {PERIOD}, and would not be asked. Fix: task.data.weights, a number "
          "for each file.")
    pattern = np.repeat(np.arange(len(sizes)), np.diff(ends, prepend=0))
    return cls(tuple(sizes), np.random.default_rng((seed, 3)).permutation(pattern))

  def at(self, position: int, seed: int) -> tuple[int, int]:
    """Returns (source, row of the source) of a position."""
    if len(self.sizes) == 1:
      return 0, row_at(position, self.sizes[0], seed)
    periods, offset = divmod(position, PERIOD)
    source = int(self.pattern[offset])
    mine = self.pattern == source
    ordinal = periods * int(mine.sum()) + int(mine[:offset].sum())
    return source, row_at(ordinal, self.sizes[source], seed + source)


def parts(cfg: DataConfig) -> list[DataConfig]:
  """Returns one config for each comma-separated path, with its own mapping and verifier.

  A single mapping or verifier applies to all paths.

  Raises:
    ConfigError: another number of mappings, verifiers or weights than of paths, or a weight that is
      not positive.
  """
  paths = names(cfg.path)
  for key, values in (("mapping", names(cfg.mapping)), ("verifier", names(cfg.verifier)),
                      ("weights", list(cfg.weights))):
    if len(values) not in (({1} if key != "weights" else {0}) | {len(paths)}):
      raise ConfigError(f"task.data.{key} = {getattr(cfg, key)!r}: {len(values)} values for "
                        f"{len(paths)} files in task.data.path. Fix: one for each"
                        + (", or one for all." if key != "weights" else ", or none."))
  if any(not weight > 0 for weight in cfg.weights):
    raise ConfigError(f"task.data.weights = {cfg.weights}: positive numbers are allowed. Fix: "
                      "leave out the file that should not be read.")
  mappings, verifiers = names(cfg.mapping), names(cfg.verifier)
  return [dataclasses.replace(cfg, path=path, mapping=mappings[min(i, len(mappings) - 1)],
                              verifier=verifiers[min(i, len(verifiers) - 1)], weights=())
          for i, path in enumerate(paths or [""])]


def first(cfg: DataConfig) -> DataConfig:
  """Returns the config of the held-out file, which is read as the first training file is."""
  return dataclasses.replace(cfg, mapping=(names(cfg.mapping) or [AUTO])[0],
                             verifier=(names(cfg.verifier) or [AUTO])[0])
