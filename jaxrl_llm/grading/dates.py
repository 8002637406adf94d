"""Dates and times of the day: "July 4th, 1776" is "4 July 1776", "3 PM" is "15:00".

Rules: own derivation.
"""

import re

from jaxrl_llm.grading.extraction import unwrap
from jaxrl_llm.grading.latex import FONT, undecorated


def same_date(gold: str, answer: str) -> bool | None:
  """Returns whether two dates are the same; None unless both are dates.

  A year that the gold has not is not compared.
  """
  expected, date = _date(gold), _date(answer)
  if expected is None or date is None:
    return None
  return expected[:2] == date[:2] and expected[2] in ("", date[2])


def same_time(gold: str, answer: str) -> bool | None:
  """Returns whether two times of the day are the same.

  Returns:
    None unless both are times, and the gold names its half: "3 PM", "noon". An answer without
    its half, as "3:00", may be any.
  """
  expected, time = _time(gold), _time(answer)
  if expected is None or time is None or not expected[1]:
    return None
  minutes, half = time
  if half or minutes >= 13 * 60:
    return expected[0] == minutes
  return expected[0] % 720 == minutes % 720


def _date(text: str) -> tuple[int, str, str] | None:
  """Returns (month, day, year) of a date with a named month, the year empty without one, or of
  2015-03-14.
  """
  if match := _ISO.fullmatch(_plain(text)):
    return int(match[2]) - 1, match[3].lstrip("0"), match[1]
  words = _plain(text).replace(",", " ").split()
  words = [word for word in words if word not in ("the", "of", "on", *_WEEKDAYS)]
  months = [word for word in words if word[:3] in _MONTHS and _MONTH.fullmatch(word)]
  digits = [word for word in words if word.isdecimal()]
  if len(months) != 1 or len(months) + len(digits) != len(words) or not 1 <= len(digits) <= 2:
    return None
  day, year = digits[0].lstrip("0"), "".join(digits[1:])
  return (_MONTHS.index(months[0][:3]), day, year) if len(day) <= 2 else None


def _time(text: str) -> tuple[int, bool] | None:
  """Returns the minutes since midnight, and whether the half of the day is named."""
  plain = re.sub(r"\.(?!\d)", "", _plain(text)).replace(" ", "")
  plain = {"noon": "12pm", "midnight": "12am"}.get(plain, plain).replace("noon", "pm")
  match = _CLOCK.fullmatch(plain)
  if match is None or not (match[2] or match[3]):
    return None
  hours, minutes = int(match[1]), int(match[2] or 0)
  if match[3]:
    hours = hours % 12 + (12 if match[3] == "pm" else 0)
  return 60 * hours + minutes, bool(match[3])


def _plain(text: str) -> str:
  return unwrap(undecorated(text), FONT).replace("~", " ").casefold().strip(" .")


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = re.compile(r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?"
                    r"|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?")
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ISO = re.compile(r"(\d{4})-(0[1-9]|1[0-2])-([0-3]\d)")
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))?(am|pm)?")
