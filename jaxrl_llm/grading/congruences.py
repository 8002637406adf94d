r"""Congruences: x \equiv 3 \pmod{7} is x \equiv -4 \pmod{7} and x = 7k + 3, k \in \mathbb{Z}.

Rules: own derivation.
"""

import re

from jaxrl_llm.grading.latex import undecorated


def same(gold: str, answer: str) -> bool | None:
  """Returns whether two congruences have the same solutions; None unless both are congruences."""
  gold, answer = (undecorated(text).replace(" ", "") for text in (gold, answer))
  expected = _CONGRUENCE.fullmatch(gold)
  match = _CONGRUENCE.fullmatch(answer) or _MULTIPLES.fullmatch(answer)
  if expected is None or match is None or not expected["name"]:
    return None
  if expected["modulus"] != match["modulus"] or match["name"] not in (None, expected["name"]):
    return False
  difference = int(expected["residue"]) - int(match["residue"] or 0)
  return difference % max(1, int(expected["modulus"])) == 0


_CONGRUENCE = re.compile(r"(?:(?P<name>[a-zA-Z])\\equiv)?(?P<residue>-?\d{1,40})"
                         r"\(?\\[pb]?mod\{?(?P<modulus>\d{1,40})\}?\)?")
_MULTIPLES = re.compile(r"(?P<name>[a-zA-Z])=(?P<modulus>\d{1,40})[a-z](?P<residue>[-+]\d{1,40})?"
                        r",?(?:\(?[a-z]\\in\\mathbb\{?Z\}?\)?)")
