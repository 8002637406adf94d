"""Search for a good response with a value: best of n, weighted votes, and step beam search.

A generator continues rows by one step, a scorer gives each row a number. Both work on lists of ids
on the host, so that a value model, an exact value or a reward model can score.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from experiments.tables_lib.generators import Generator, Step, engine_generator
from jaxrl_llm.fields import ConfigError

__all__ = ["Beam", "BeamConfig", "Generator", "Scorer", "Step", "best_of_n", "engine_generator",
           "step_beam_search", "weighted_vote"]

Scorer = Callable[[Sequence[Sequence[int]]], np.ndarray]  # rows of ids -> a number for each


@dataclasses.dataclass(frozen=True)
class Beam:
  """A response so far.

  Attributes:
    ids: of the response, without the prompt.
    score: of prompt and response.
    ended: whether its last id ends it, or its length is at the limit.
  """

  ids: tuple[int, ...] = ()
  score: float = -np.inf
  ended: bool = False


@dataclasses.dataclass(frozen=True)
class BeamConfig:
  """Sizes of a step beam search; the defaults are OVM's on GSM8K.

  Attributes:
    candidates: K, next steps that all beams of a prompt have together.
    beams: b, rows that are kept; divides K.
    max_steps: steps of a response at most.
    max_new_tokens: tokens of a response at most; what is longer is cut, and ended.
    distinct: keeps different responses first, and copies only where there are not enough.
  """

  candidates: int = 20
  beams: int = 4
  max_steps: int = 10
  max_new_tokens: int = 400
  distinct: bool = False

  def __post_init__(self):
    if self.beams < 1 or self.candidates % self.beams or not self.candidates:
      raise ConfigError(f"candidates = {self.candidates} with beams = {self.beams}: each beam has "
                        "as many candidates. Fix: a multiple of beams, which is 1 or more.")


def best_of_n(scores: np.ndarray) -> np.ndarray:
  """Returns the index of the largest score along the last axis; of equal ones, the first.

  Raises:
    ValueError: a score is NaN.
  """
  scores = np.asarray(scores)
  if np.isnan(scores).any():
    raise ValueError("best_of_n: a score is NaN. Fix: -inf for a sample that has none.")
  return scores.argmax(-1)


def weighted_vote(answers: Sequence[Hashable | None], scores: Sequence[float]) -> Hashable | None:
  """Returns the answer whose samples have the largest sum of scores, or None without any answer.

  Samples without an answer (None) do not vote. A tie goes to the answer that appeared first.
  """
  sums: dict[Hashable, float] = {}
  for answer, score in zip(answers, scores, strict=True):
    if answer is not None:
      sums[answer] = sums.get(answer, 0.0) + float(score)
  return max(sums, key=sums.__getitem__) if sums else None


def step_beam_search(generator: Generator, scorer: Scorer, prompts: Sequence[Sequence[int]],
                     cfg: BeamConfig) -> list[list[Beam]]:
  """Returns for each prompt its b beams, ended ones first, and then the best score first.

  In each step, every beam that has not ended is continued by K / b candidates. A candidate's score
  is the scorer's for the full row. The best b of candidates and ended beams are kept; of equal
  scores, the first. With K = b and a constant scorer, the beams are b independent samples.

  Args:
    generator: decides where a step ends, such as `engine_generator`.
    scorer: called once per step, for the new candidates of all prompts.
    prompts: ids.
    cfg: sizes.

  Source: OVM, arXiv 2311.09724, and its public code. That ended beams stay in the contest is our
  reading.
  """
  beams = [[Beam()] * cfg.beams for _ in prompts]
  per_beam = cfg.candidates // cfg.beams
  for step in range(cfg.max_steps):
    open_beams = [(prompt_index, beam) for prompt_index, group in enumerate(beams) for beam in group
                  if not beam.ended]
    if not open_beams:
      break
    rows = [[*prompts[prompt_index], *beam.ids] for prompt_index, beam in open_beams]
    steps = generator(rows, per_beam, step)
    extended = [_continued(open_beams[index // per_beam][1], step_output, cfg)
                for index, step_output in enumerate(steps)]
    places = [open_beams[index // per_beam][0] for index in range(len(extended))]
    scores = scorer([[*prompts[prompt_index], *beam.ids]
                     for prompt_index, beam in zip(places, extended, strict=True)])
    candidates = [[beam for beam in group if beam.ended] for group in beams]
    for prompt_index, beam, score in zip(places, extended, scores, strict=True):
      candidates[prompt_index].append(dataclasses.replace(beam, score=float(score)))
    beams = [_best(group, cfg) for group in candidates]
  return [sorted(group, key=_sort_key) for group in beams]


def _continued(beam: Beam, step: Step, cfg: BeamConfig) -> Beam:
  ids = (*beam.ids, *step.ids)[:cfg.max_new_tokens]
  return Beam(ids, ended=step.ended or len(ids) == cfg.max_new_tokens)


def _best(group: list[Beam], cfg: BeamConfig) -> list[Beam]:
  """Returns the best b of a group, the first of equal ones; with `distinct`, copies come last."""
  ranked = sorted(group, key=_neg_score)
  if cfg.distinct:
    first = {beam.ids: index for index, beam in reversed(list(enumerate(ranked)))}
    distinct_indices = set(first.values())
    ranked = [ranked[i] for i in sorted(distinct_indices)] + [
        beam for i, beam in enumerate(ranked) if i not in distinct_indices]
  return ranked[:cfg.beams]


def _neg_score(beam: Beam) -> float:
  return -beam.score


def _sort_key(beam: Beam) -> tuple[bool, float]:
  return not beam.ended, -beam.score
