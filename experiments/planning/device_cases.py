"""Measurements that take turns on one device, within a time limit and whatever one of them does."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

MEASURED, SKIPPED, NO_FIT, FAILED = "measured", "skipped", "did not fit", "failed"


class Case(NamedTuple):
  """One measurement: `measure(rows)` returns its numbers; `kind` groups those that take as long."""

  name: str
  kind: str
  rows: int
  measure: Callable[[int], dict]


def run_cases(cases: list[Case], seconds: float,
              clock: Callable[[], float] = time.perf_counter) -> Iterator[dict]:
  """Yields one dict per case: `case`, `status`, `rows`, `did_not_fit` (numbers of rows that were
  too many), `note`, `case_seconds`, and if it was measured its numbers.

  A case begins only if the longest one of its kind so far would end within `seconds` of the first
  call. One that began is not interrupted.
  """
  begin, longest = clock(), {}
  for case in cases:
    started = clock()
    if started - begin + longest.get(case.kind, 0.0) >= seconds:
      yield {"case": case.name, "status": SKIPPED, "rows": case.rows, "did_not_fit": [],
             "note": f"no time left of {seconds:g} s", "case_seconds": 0.0}
      continue
    row = _attempts(case, begin + seconds, clock)
    row["case_seconds"] = clock() - started
    longest[case.kind] = max(longest.get(case.kind, 0.0), row["case_seconds"])
    yield row


def _attempts(case: Case, end: float, clock: Callable[[], float]) -> dict:
  """Measures a case, with half of the rows while the memory does not hold them."""
  rows, too_many = case.rows, []
  while rows and (not too_many or clock() < end):
    status, numbers = _attempt(case, rows)
    if status != MEASURED:
      gc.collect()  # what a failed attempt held must be gone before the next one
    if status != NO_FIT:
      return {"case": case.name, "status": status, "rows": rows, "did_not_fit": too_many,
              "note": "", **numbers}
    too_many, rows = [*too_many, rows], rows // 2
  return {"case": case.name, "status": NO_FIT, "rows": case.rows, "did_not_fit": too_many,
          "note": "out of memory"}


def _attempt(case: Case, rows: int) -> tuple[str, dict[str, Any]]:
  try:
    return MEASURED, case.measure(rows)
  except Exception as error:  # a kernel's errors have many types, and the other cases shall run
    reason = f"{type(error).__name__}: {error}"
    if "RESOURCE_EXHAUSTED" in reason or "out of memory" in reason.lower():
      return NO_FIT, {}
    return FAILED, {"note": reason.splitlines()[0][:200]}


def timed(function: Callable[[], Any], repeats: int) -> dict:
  """Returns the seconds of each call, their median, and the seconds of the first call, which
  compiles.
  """
  call_seconds = []
  for _ in range(repeats + 1):
    begin = time.perf_counter()
    jax.block_until_ready(function())
    call_seconds.append(time.perf_counter() - begin)
  return {"first_seconds": call_seconds[0], "all_seconds": call_seconds[1:],
          "seconds": statistics.median(call_seconds[1:])}
