"""The atlas in numbers: the inputs that a weight depends on, and how far a token may move."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from experiments.tables_lib.atlas.coefficients import (
  POSITIONS,
  SIGNS,
  SPAN,
  Rows,
  batched_coefficients,
  even_rows,
)
from jaxrl_llm.config import EstimatorConfig
from jaxrl_llm.objective import estimators
from jaxrl_llm.reporting.tables import MISSING, markdown_table

READS = ("token", "prefix sum", "position", "sign of A", "later tokens", "probability", "batch")
# Steps of the token's log-ratio fine enough to see a bound that moves by an eighth.
OWN = np.concatenate([-np.geomspace(SPAN, 1e-3, 70), [0.0], np.geomspace(1e-3, SPAN, 70)])
SUMS = np.concatenate([-np.geomspace(SPAN, 1e-3, 15), [0.0], np.geomspace(1e-3, SPAN, 15)])
NEAR, FAR = POSITIONS[1:]
LATER = (0.1,) * 10
RARER = -3.0  # another log_probability than the atlas's; allows every log-ratio up to SPAN
TOLERANCE = 1e-6

MOVES = ("one token", "whole row")
SIDES = ((1.0, 1), (-1.0, -1), (-1.0, 1), (1.0, -1))  # sign of A, direction of the move
SCAN = np.geomspace(1e-4, SPAN, 1200)  # steps of less than 1 %
GONE = 0.01


@dataclasses.dataclass(frozen=True)
class Limit:
  """The log-ratio at which the weight of a token ends.

  Attributes:
    at: nats per token, positive; None where it does not end.
    faded: whether the weight is small there, above 0 but below GONE.
  """

  at: float | None
  faded: bool = False


@dataclasses.dataclass(frozen=True)
class Facts:
  """Measured properties of one estimator.

  Attributes:
    reads: each of READS to whether the weight depends on it.
    limits: (move, sign of A, direction) to a Limit for each of POSITIONS; see `limit_table`.
  """

  reads: dict[str, bool]
  limits: dict[tuple[str, float, int], tuple[Limit, ...]]


def measure(cfg: EstimatorConfig) -> Facts:
  """Returns the facts about one estimator; raises ConfigError as `row_coefficients` does."""
  shape = (len(SUMS), len(OWN))
  sums, log_ratios = (x.reshape(-1) for x in np.meshgrid(SUMS, OWN, indexing="ij"))
  grids = [even_rows(t, sums, log_ratios, sign=sign, **more) for t, more in (
      (NEAR, {}), (FAR, {}), (NEAR, {"later": LATER}), (NEAR, {"log_probability": RARER}))
      for sign in SIGNS]
  scans = {(move, sign, direction, t): _scan(move, sign, direction, t)
           for move in MOVES for sign, direction in SIDES for t in POSITIONS}
  values = batched_coefficients(cfg, [*grids, *scans.values()])
  near, far, later, rarer = np.stack(values[:len(grids)]).reshape(4, len(SIGNS), *shape)
  reads = {
      "token": _differ(near, near[:, :, :1]),
      "prefix sum": _differ(near, near[:, :1]),
      "position": _differ(near, far),
      "sign of A": _differ(near, near[::-1]),
      "later tokens": _differ(near, later),
      "probability": _differ(near, rarer),
      "batch": estimators.spec(cfg.name).batch_statistics,
  }
  limit_of = {key: _limit(weights, np.abs(scans[key].log_ratios[:, -1]))
              for key, weights in zip(scans, values[len(grids):], strict=True)}
  limits = {(move, *side): tuple(limit_of[(move, *side, t)] for t in POSITIONS)
            for move in MOVES for side in SIDES}
  return Facts(reads, limits)


def _differ(a: np.ndarray, b: np.ndarray) -> bool:
  return not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def _scan(move: str, sign: float, direction: int, t: int) -> Rows:
  """Returns rows that move further and further: by their last token, or by all alike."""
  log_ratios = direction * SCAN
  return even_rows(t, log_ratios if move == "one token" else t * log_ratios, log_ratios, sign=sign)


def _limit(weights: np.ndarray, moved: np.ndarray) -> Limit:
  faded_indices = np.flatnonzero(weights < GONE)
  if not faded_indices.size:
    return Limit(None)
  first = faded_indices[0]
  limit = float(np.sqrt(moved[max(first - 1, 0)] * moved[first]))
  return Limit(limit, faded=bool(weights[first] > 0))


def reads_table(facts: Mapping[str, Facts]) -> str:
  """Returns a table in Markdown: what the weight of each method depends on."""
  return markdown_table(("", *READS), [
      (label, *("yes" if method_facts.reads[name] else MISSING for name in READS))
      for label, method_facts in facts.items()])


def limit_table(facts: Mapping[str, Facts], move: str) -> str:
  """Returns a table in Markdown: how far a token may move before its weight ends, nats per token.

  Args:
    facts: label to its facts.
    move: "one token": only the last token of the row moves. "whole row": all of the row's tokens
      move, each by the same log-ratio.
  """
  heads = [f"A {'>' if sign > 0 else '<'} 0, {'up' if direction > 0 else 'down'}"
           for sign, direction in SIDES]
  return markdown_table(("", *heads), [
      (label, *(_cell(method_facts.limits[(move, *side)]) for side in SIDES))
      for label, method_facts in facts.items()])


def _cell(limits: tuple[Limit, ...]) -> str:
  """Returns the limits at all positions, or the one that they share."""
  texts = [MISSING if x.at is None else f"{'~' if x.faded else ''}{float(f'{x.at:.2g}'):g}"
           for x in limits]
  return texts[0] if len(set(texts)) == 1 else " / ".join(texts)
