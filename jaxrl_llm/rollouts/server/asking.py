"""Samples many rows from a server: a bounded number of concurrent requests, failed rows resampled.
"""

import dataclasses
import functools
import queue
import threading
from collections.abc import Sequence

import numpy as np

from jaxrl_llm.rollouts.server import ServerError, completions
from jaxrl_llm.rollouts.server.client import Client
from jaxrl_llm.rollouts.server.completions import AnswerError, Completion, Limits
from jaxrl_llm.types import Sampling

ATTEMPTS = 3  # unusable answers to one row, or changes of weights in one batch: then the run ends

@dataclasses.dataclass(frozen=True)
class RequestBatcher:
  """Asks a server for rows.

  Attributes:
    client: client of the server.
    model: the name under which it serves the policy.
    limits: what ends a row.
    in_flight: concurrent requests.
  """

  client: Client
  model: str
  limits: Limits
  in_flight: int

  def rows(self, prompts: Sequence[Sequence[int]], seeds: Sequence[np.random.SeedSequence],
           sampling: Sampling) -> tuple[list[Completion], np.ndarray]:
    """Asks for a completion of each prompt.

    An unusable answer is dropped, and the row is sampled again with another seed.

    Args:
      prompts: ids of each row.
      seeds: of each row; the seed of the n-th attempt is their n-th number.
      sampling: numbers on the host.

    Returns:
      (completion of each row, [rows] number of unusable answers).

    Raises:
      ServerError: an answer was unusable ATTEMPTS times, or as `Client.with_retries`.
    """
    todo: queue.SimpleQueue = queue.SimpleQueue()
    outcomes: queue.SimpleQueue = queue.SimpleQueue()
    stop = threading.Event()
    for row in range(len(prompts)):
      todo.put(row)

    def work() -> None:
      while not stop.is_set():
        try:
          row = todo.get_nowait()
        except queue.Empty:
          return
        try:
          outcomes.put((row, self._row(prompts[row], seeds[row], sampling, stop)))
        except Exception as error:
          outcomes.put((row, error))

    # Daemons, because a request that the server does not answer must not hold up the end of a run.
    for number in range(min(self.in_flight, len(prompts))):
      threading.Thread(target=work, name=f"server_{number}", daemon=True).start()
    completions: list[tuple[Completion, int]] = [None] * len(prompts)  # type: ignore[list-item]
    try:
      for _ in prompts:
        row, outcome = outcomes.get()
        if isinstance(outcome, Exception):
          raise outcome
        completions[row] = outcome
    finally:
      stop.set()
    return [completion
            for completion, _ in completions], np.array([failed for _, failed in completions], int)

  def _row(self, prompt: Sequence[int], seeds: np.random.SeedSequence, sampling: Sampling,
           stop: threading.Event) -> tuple[Completion, int]:
    """Returns (completion, number of unusable answers before it)."""
    numbers = seeds.generate_state(ATTEMPTS) & 0x7FFFFFFF
    for failures, seed in enumerate(numbers):
      body = completions.request(self.model, prompt, int(seed), sampling, self.limits)
      ask = functools.partial(self.client.ask, completions.PATH, body)
      answer = self.client.with_retries(ask, stop)
      try:
        return completions.parse(answer, prompt, self.limits), failures
      except AnswerError as error:
        last = error
    raise ServerError(
        f"server.url = {self.client.url!r}: {ATTEMPTS} answers for one row were unusable. The "
        f"last one: {last}. The last checkpoint is complete. Fix: what the server does, as "
        "jaxrl_llm/rollouts/server/README.md asks for it.")
