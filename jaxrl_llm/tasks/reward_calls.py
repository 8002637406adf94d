"""Calls rewards, one after another or concurrently, and keeps what each call ended with."""

import asyncio
import concurrent.futures
import dataclasses
import inspect
import json
import urllib.request
from collections.abc import Callable

from jaxrl_llm.fields import option
from jaxrl_llm.types import Problem

PAUSE = 0.5  # seconds before the first repetition; it doubles with each further one


@dataclasses.dataclass(frozen=True)
class Calls:
  """Hyperparameters that every asynchronous reward reads, in addition to its own."""

  in_flight: int = option(16, "calls of an asynchronous reward that wait at once", low=1)
  timeout: float = option(60.0, "time limit of one call, seconds", low=0.01)
  retries: int = option(2, "repetitions of a call that failed or was late", low=0, high=100)


@dataclasses.dataclass(frozen=True)
class Failed:
  """The exception that a call of a reward ended with."""

  error: BaseException

  @property
  def reason(self) -> str:
    """Returns the exception in one line."""
    text = " ".join(str(self.error).split())[:200]
    kind = "timeout" if isinstance(self.error, TimeoutError) else type(self.error).__name__
    return f"{kind}: {text}" if text else kind


async def asked(url: str, question, timeout: float):
  """Returns a server's answer to a question, both JSON, while other calls run.

  Args:
    timeout: seconds without a byte from the server.

  Raises:
    OSError: no answer, a late one, or a status that is not 2xx.
    ValueError: an answer that is not JSON.
  """
  request = urllib.request.Request(url, json.dumps(question).encode(),
                                   {"Content-Type": "application/json"})

  def post():
    with urllib.request.urlopen(request, timeout=timeout) as reply:
      return json.load(reply)

  return await asyncio.to_thread(post)


def call_reward(function: Callable, group: bool, asynchronous: bool, problems: list[Problem],
            completions: list[str], cfg) -> list:
  """Returns what a reward returned for each completion, or `Failed`.

  Args:
    group: whether it reads all completions of a problem in one call.
    asynchronous: whether it is a coroutine function; `cfg` then has the hyperparameters of `Calls`.
    problems: one per group.
    completions: group after group.
    cfg: the last argument of each call.
  """
  size = len(completions) // len(problems)
  groups = [completions[i:i + size] for i in range(0, len(completions), size)]
  calls: list[tuple] = list(zip(problems, groups, strict=True))
  if not group:
    calls = [(problem, text) for problem, texts in calls for text in texts]
  outcomes = (_run_async(function, calls, cfg) if asynchronous else
              [_call(function, problem, argument, cfg) for problem, argument in calls])
  return _per_row(outcomes, groups) if group else outcomes


def _call(function: Callable, problem: Problem, completions, cfg):
  try:
    outcome = function(problem, completions, cfg)
    if inspect.iscoroutine(outcome):
      outcome.close()  # else Python would warn later that it was never awaited
      raise TypeError("a function returned a coroutine. Fix: async def")
    return outcome
  except (Exception, SystemExit) as error:  # an exit would end the run as if it had finished
    return Failed(error)


def _run_async(function: Callable, calls: list[tuple], cfg: Calls) -> list:
  """Returns the results of asynchronous calls, at most `cfg.in_flight` of which wait at the same
  time.

  If an exception such as Ctrl-C interrupts the wait, calls under way are cancelled.
  """
  running = {}

  async def all_calls():
    running["loop"], running["task"] = asyncio.get_running_loop(), asyncio.current_task()
    free = asyncio.Semaphore(cfg.in_flight)
    return await asyncio.gather(*(call_when_free(free, call) for call in calls))

  async def call_when_free(free: asyncio.Semaphore, call: tuple):
    async with free:
      return await _with_retries(function, call, cfg)

  # A separate thread, because a notebook's thread has a running loop already.
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    answers = thread.submit(asyncio.run, all_calls())
    try:
      return answers.result()
    except BaseException:
      if running and not answers.done():
        running["loop"].call_soon_threadsafe(running["task"].cancel)
      raise


async def _with_retries(function: Callable, call: tuple, cfg: Calls):
  for attempt in range(cfg.retries + 1):
    if attempt:
      await asyncio.sleep(PAUSE * 2 ** (attempt - 1))
    try:
      return await asyncio.wait_for(_staying(function(*call, cfg)), cfg.timeout)
    except Exception as error:
      failed = Failed(error)
  return failed


async def _staying(call):
  """Awaits a call; sys.exit in it, which would end the loop of all calls, becomes its failure."""
  try:
    return await call
  except SystemExit as error:
    raise RuntimeError(f"sys.exit({error.code!r})") from error


def _per_row(outcomes: list, groups: list[list[str]]) -> list:
  """Returns one result per completion of what a group reward returned for each group."""
  out: list = []
  for outcome, group in zip(outcomes, groups, strict=True):
    fits = isinstance(outcome, (list, tuple)) and len(outcome) == len(group)
    if not fits and not isinstance(outcome, Failed):
      outcome = Failed(TypeError(f"a reward of a group of {len(group)} returns a list of as many "
                                 f"components; this one returned {repr(outcome)[:80]}"))
    out += outcome if fits else [outcome] * len(group)  # type: ignore[arg-type]
  return out
