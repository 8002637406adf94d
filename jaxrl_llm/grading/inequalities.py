r"""Inequalities in one variable as intervals: x > 3 is (3,\infty)."""

import re


def interval(text: str) -> str | None:
  r"""Returns an inequality in one variable as an interval or a union of them; None if it is none.

  `1 \le x < 3` is [1,3), `x \ne 2` two open intervals. The variable's name is lost.
  """
  inside = _SET_OF.sub("", _REAL.sub("", text))
  if inside != text:
    inside = re.sub(r"\\\}\s*$", "", inside)
  if member := _MEMBER.match(inside):
    return inside[member.end():].strip()
  intervals, names = [], set()
  both = " and " in inside
  for part in AND.split(inside):
    named_interval = _one_interval(part.strip())
    if named_interval is None:
      return None
    names.add(named_interval[0])
    intervals.append(named_interval[1])
  if both and len(intervals) == 2 and len(names) == 1:
    return _overlap(*sorted(intervals))
  return r" \cup ".join(intervals) if len(names) == 1 and not (both and intervals[1:]) else None


def _overlap(left: str, right: str) -> str | None:
  r"""Returns (1,3] of (1,\infty) and (-\infty,3]; None unless each is a ray and they meet."""
  below, above = (next((ray for ray in (left, right) if pattern.fullmatch(ray)), None)
                  for pattern in (_RAY_DOWN, _RAY_UP))
  if below is None or above is None:
    return None
  return f"{_RAY_UP.fullmatch(above)[1]},{_RAY_DOWN.fullmatch(below)[1]}"


def variable(text: str) -> str | None:
  """Returns the name in an inequality of one variable, or None."""
  text = _REAL.sub("", text)
  if match := _MEMBER.match(text):
    return match[0].split("\\", 1)[0].strip()
  named_interval = _one_interval(AND.split(text)[0].strip())
  return None if named_interval is None else named_interval[0]


def _one_interval(text: str) -> tuple[str, str] | None:
  """Returns (variable, interval) of one inequality without "or"."""
  parts = _RELATION.split(text)
  sides, signs = [part.strip() for part in parts[::2]], [_sign(sign) for sign in parts[1::2]]
  if len(signs) == 1 and _VARIABLE.fullmatch(sides[1]) and not _VARIABLE.fullmatch(sides[0]):
    sides, signs = sides[::-1], [_FLIPPED[signs[0]]]
  if len(signs) == 1 and _VARIABLE.fullmatch(sides[0]) and not _VARIABLE.fullmatch(sides[1]):
    name, bound = sides
    if signs[0] == "!":
      return name, rf"(-\infty,{bound}) \cup ({bound},\infty)"
    if not bound:
      return None
    return name, {"<": rf"(-\infty,{bound})", "<=": rf"(-\infty,{bound}]",
                  ">": rf"({bound},\infty)", ">=": rf"[{bound},\infty)"}[signs[0]]
  if len(signs) == 2 and _VARIABLE.fullmatch(sides[1]) and sides[0] and sides[2]:
    if all(sign in (">", ">=") for sign in signs):
      sides, signs = sides[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
    if all(sign in ("<", "<=") for sign in signs):
      opening, closing = "(" if signs[0] == "<" else "[", ")" if signs[1] == "<" else "]"
      return sides[1], f"{opening}{sides[0]},{sides[2]}{closing}"
  return None


def _sign(text: str) -> str:
  text = text.strip()
  if text.startswith(("\\ne", "!=")):
    return "!"
  less = text.startswith(("<", "\\l"))
  strict = text in ("<", ">", "\\lt", "\\gt")
  return ("<" if less else ">") + ("" if strict else "=")


AND = re.compile(
    r"\s*,?\s*(?:\\(?:text|mathrm|mbox|textrm)\s?\{\s*(?:and|or)\s*\}|\\(?:lor|vee)(?![a-zA-Z])|"
    r"(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z]))\s*")
_RELATION = re.compile(
    r"(\\(?:leqslant|geqslant|leqq|geqq|leq|geq|neq|le|ge|ne|lt|gt)(?![a-zA-Z])|<=|>=|!=|<|>)")
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!": "!"}
_VARIABLE = re.compile(r"[a-zA-Z]|\\(?:alpha|beta|gamma|lambda|mu|theta|varepsilon|epsilon)")
_SET_OF = re.compile(r"^\s*\\\{\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid|:|\|)\s*")
_RAY_UP = re.compile(r"([(\[].+),\\infty\)")
_RAY_DOWN = re.compile(r"\(-\\infty,(.+[)\]])")
_REAL = re.compile(r"^\s*[a-zA-Z]\s*\\in\s*\\mathbb\s*\{?R\}?\s*,\s*(?=[a-zA-Z]\s*\\ne)")
_MEMBER = re.compile(r"^\s*(?:[a-zA-Z]|\(\s*[a-z](?:\s*,\s*[a-z])+\s*\))\s*\\in(?![a-zA-Z])\s*"
                     r"(?=[(\[\]]|\\(?:\{|left|mathbb|emptyset|varnothing))")
