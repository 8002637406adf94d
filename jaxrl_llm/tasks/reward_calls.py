"""Calls rewards, one after another, concurrently or isolated; keeps what each call ended with."""

import asyncio
import concurrent.futures
import dataclasses
import inspect
import json
import sys
import types
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl_llm.config.plugins import plugin_name
from jaxrl_llm.fields import ConfigError, option
from jaxrl_llm.registry import Entry
from jaxrl_llm.sandbox.results import Fault
from jaxrl_llm.tasks.reward_watch import Watch
from jaxrl_llm.types import Problem

if TYPE_CHECKING:  # a run imports the sandbox when something runs in it
  from jaxrl_llm.sandbox.isolated_calls import IsolatedCalls

LATE_CALLS = 5  # of an isolated reward, for which a batch waits
SOURCE = """from jaxrl_llm.config import load_plugins
from jaxrl_llm.registry import REWARDS
load_plugins(({plugin!r},))
target = REWARDS[{name!r}].function
"""
PAUSE = 0.5  # seconds before the first repetition; it doubles with each further one
# What no text makes a reward raise: a service, file or module that is missing, or a wrong name.
OF_REWARD = (OSError, ImportError, NameError, NotImplementedError, MemoryError, SystemExit)


@dataclasses.dataclass(frozen=True)
class Limit:
  """The hyperparameter that every reward of the user reads, in addition to its own."""

  timeout: float = option(60.0, "time limit of one call, seconds", low=0.01)


@dataclasses.dataclass(frozen=True)
class Calls(Limit):
  """Hyperparameters that every asynchronous reward reads, in addition to its own."""

  in_flight: int = option(16, "calls of an asynchronous reward that wait at once", low=1)
  retries: int = option(2, "repetitions of a call that failed or was late", low=0, high=100)


def raised(error: BaseException, *, of_text: bool = False) -> Fault:
  """Returns the exception of a call, in one line."""
  text = " ".join(str(error).split())[:200]
  kind = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
  return Fault(f"{kind}: {text}" if text else kind, of_text)


def isolated_calls(name: str, entry: Entry, timeout: float) -> "IsolatedCalls":
  """Returns the processes for an isolated reward, which import the file that registers it.

  Raises:
    ConfigError: it is not defined in a file, or the file cannot be imported there.
  """
  from jaxrl_llm.sandbox.isolated_calls import IsolatedCalls

  function = inspect.unwrap(entry.function)
  module = sys.modules[function.__module__]
  path = getattr(module, "__file__", None)
  if module.__name__ == "__main__" or path is None:
    raise ConfigError(f"reward {name!r}: isolated=True, but its function is defined in "
                      f"{module.__name__}, which other processes cannot import. Fix: a file that "
                      "config.plugins names.")
  is_file = plugin_name(path) == module.__name__
  plugin = str(Path(path).resolve()) if is_file else module.__name__
  return IsolatedCalls(SOURCE.format(plugin=plugin, name=name),
                       cpu=timeout, wall=timeout, quick=None, budget=LATE_CALLS * timeout)


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


def call_reward(label: str, entry, problems: list[Problem], completions: list[str], cfg,
                isolated: "IsolatedCalls | None" = None) -> list:
  """Returns what a reward returned for each completion, or a `Fault`.

  Args:
    label: of the reward in the log.
    entry: a `rewards.RewardEntry`.
    problems: one per group.
    completions: group after group.
    cfg: the last argument of each call.
    isolated: makes the calls in other processes.
  """
  size = len(completions) // len(problems)
  groups = [completions[i:i + size] for i in range(0, len(completions), size)]
  calls: list[tuple] = list(zip(problems, groups, strict=True))
  if not entry.group:
    calls = [(problem, text) for problem, texts in calls for text in texts]
  if isolated is not None:
    given = types.SimpleNamespace(**{f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)})
    outcomes = isolated.run([(*call, given) for call in calls])
  elif entry.asynchronous:
    outcomes = _run_async(entry.function, calls, cfg)
  else:
    with Watch(label, cfg.timeout) as watch:
      outcomes = [watch.call(_call, entry.function, *call, cfg) for call in calls]
  return _per_row(outcomes, groups) if entry.group else outcomes


def _call(function: Callable, problem: Problem, completions, cfg):
  try:
    outcome = function(problem, completions, cfg)
    if inspect.iscoroutine(outcome):
      outcome.close()  # else Python would warn later that it was never awaited
      raise NotImplementedError("a function returned a coroutine. Fix: async def")
    return outcome
  except (Exception, SystemExit) as error:  # an exit would end the run as if it had finished
    return raised(error, of_text=not isinstance(error, OF_REWARD))


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
      fault = raised(error)
  return fault


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
    if isinstance(outcome, Fault):  # which of its texts is at fault is not known
      outcome = dataclasses.replace(outcome, of_text=False)
    elif not fits:
      outcome = Fault(f"TypeError: a reward of a group of {len(group)} returns a list of as many "
                      f"components; this one returned {repr(outcome)[:80]}", False)
    out += outcome if fits else [outcome] * len(group)  # type: ignore[arg-type]
  return out
