r"""Formulas of which the checker would read only a part and take it for all.

math-verify reads 5 in "\neq 5", in "n \mid 5", in "4 \to 5" and in "5\text{ or more}", loses the
names of x=3, y=5 and takes {0,1} for (0,1). `comparable` lets two formulas through only if every
relation sign, every word that bounds or denies, every name and every bracket of both is read, or if
both have the same. Own derivation.
"""

import re

from jaxrl_llm.grading import inequalities
from jaxrl_llm.grading.extraction import unwrap
from jaxrl_llm.grading.latex import FONT, list_parts
from jaxrl_llm.grading.quantities import equal, quantity


def comparable(gold: str, answer: str) -> tuple[str, str] | None:
  """Returns two formulas as the checker reads all of them; None if they differ in an unread part.

  Args:
    gold, answer: of `latex.canonical`, which are not the same text.
  """
  gold, answer = (_listed(_without_remark(text)) for text in (gold, answer))
  if contradicts(answer) and "=" not in gold:
    return None
  if not _same_signs(gold, answer) or bounds(gold) != bounds(answer):
    return None
  if any(_is_single(one) and r"\cup" in two for one, two in ((gold, answer), (answer, gold))):
    return None
  if _unread_commands(gold) != _unread_commands(answer) or gold.count("'") != answer.count("'"):
    return None
  if {"="} & {*answer} and "=" not in gold and unsolved(_last_item(answer.rpartition("=")[0])):
    return None
  formulas = _by_names(gold, answer)
  if formulas is None or _brackets(formulas[0]) == _brackets(formulas[1]):
    return formulas
  gold_brackets, answer_brackets = (_brackets(text) for text in formulas)
  if any(_is_single(text) for text in formulas):
    return None  # a number is no interval [5,5]
  if "{" in (gold_brackets, answer_brackets) and "" not in (gold_brackets, answer_brackets):
    return None  # a set is no tuple and no interval
  gold_is_list = len(list_parts(gold)) > 1 and "=" not in gold
  answer_is_list = len(list_parts(answer)) > 1 and "=" not in answer
  if answer_brackets in ("(", "[") and not gold_brackets and gold_is_list:
    return (f"({gold})", answer) if answer_brackets == "(" and gold == formulas[0] else None
  if gold_brackets in ("(", "[") and not answer_brackets and answer_is_list:
    return (gold, f"({answer})") if gold_brackets == "(" and answer == formulas[1] else None
  return formulas


def unsolved(left: str) -> bool:
  r"""Returns whether a left side is a formula in one unknown: 2x, x^2, \frac{x}{2}; no name is."""
  left = re.sub(r"(?<=\d)\s?x\s?(?=\$?[\d.])", "*", left)  # 2 x $5
  plain = re.sub(r"\\(?:[dt]?frac|sqrt|left|right|cdot"
                 r"|times)(?![a-zA-Z])", " ", unwrap(left, FONT))
  if re.search(r"\\[a-zA-Z]|[A-Za-z]{2}|[A-Z]|[a-z]\(|_", plain):
    return False
  names = set(re.findall(r"[a-z]", re.sub(r"(?<![a-z])e\s?(?=\^)", "2", plain)))
  return len(names) == 1 and bool(re.search(r"\d|[-+*/^|]", plain))


def contradicts(equation: str) -> bool:
  """Returns whether an equation sets two numbers equal that differ, 9 = 10."""
  lhs, _, rhs = equation.rpartition("=")
  lhs_value, rhs_value = quantity(_last_item(lhs)), quantity(rhs)
  return lhs_value is not None and rhs_value is not None and not equal(lhs_value, rhs_value)


def _last_item(text: str) -> str:
  parts = list_parts(text)
  return parts[-1] if parts else ""


def last_step(gold: str, answer: str) -> str:
  r"""Returns "x=5" of "2x=10 \Rightarrow x=5", if the gold has no such arrow."""
  answer = _THEREFORE.sub("", answer)
  steps = _IMPLIES.split(answer)
  if "=" not in gold and (turned := _TURNED.fullmatch(answer)):
    return f"{turned[2]} = {turned[1]}"
  if len(steps) < 2 or _IMPLIES.search(gold) or not all("=" in step for step in steps[:-1]):
    return answer
  return steps[-1]


def _without_remark(text: str) -> str:
  r"""Returns a formula without "\text{The value is}" before and "\text{ (since"
                                                                 " ...)}" after it."""
  return _REMARK.sub("", _NAMING.sub("", text)) or text


def _listed(text: str) -> str:
  r"""Returns "5, 6" for "5 \lor 6", "5 \text{ or } 6" and rows of formulas."""
  if r"\\" in text and r"\begin" not in text:
    text = text.replace(r"\\", ", ")
  if re.search(r"\\(?:lor|vee)(?![a-zA-Z])|\\(?:text|mathrm|mbox)\s?\{\s*(?:and|or)\s*\}", text):
    return inequalities.AND.sub(", ", text)
  return text


def _same_signs(gold: str, answer: str) -> bool:
  """Returns whether both have the same relation signs, or signs that the checker reads.

  It reads an inequality with two sides, and solves it if the other formula is a set.
  """
  gold_signs, answer_signs = (_signs(text) for text in (gold, answer))
  if not (gold_signs or answer_signs):
    return True
  ordered = [bool(signs) and set(signs) <= set(_ORDER) and _has_sides(text)
             for signs, text in ((gold_signs, gold), (answer_signs, answer))]
  if gold_signs and answer_signs:
    flipped = [[sign.replace(">", "<") for sign in signs] for signs in (gold_signs, answer_signs)]
    return sorted(flipped[0]) == sorted(flipped[1]) and all(ordered)
  return any(ordered) and bool(_SET.search(answer if gold_signs else gold))


def _signs(text: str) -> list[str]:
  r"""Returns the relation signs but "=" and \approx; the arrow in \lim_{x \to 0} is none."""
  text = re.sub(r"_\s?\{[^{}]*\}", "", text)
  signs = [match[0].replace(" ", "") for match in _SIGN.finditer(text)]
  return sorted(_SPELLINGS.get(sign, sign) for sign in signs)


def _has_sides(text: str) -> bool:
  return all(re.search(r"[\w)}]", side) for side in _SIGN.split(text))


def bounds(text: str) -> list[str]:
  """Returns the words that bound, deny or qualify a number."""
  plain = " ".join(_COMMAND.sub(" ", unwrap(text, FONT)).casefold().split())
  return sorted(_BOUND.findall(plain))


def _unread_commands(text: str) -> list[str]:
  """Returns the commands that the checker may drop."""
  names = re.findall(r"\\([a-zA-Z]+)", text.replace(r"\\", " "))
  return sorted(name for name in names if name not in _READ)


def _brackets(text: str) -> str:
  r"""Returns "{", "(" or "[" if one pair of brackets encloses a list, "" if none does."""
  text = text.strip()
  body = text.replace(r"\{", "{").replace(r"\}", "}") if text.startswith(r"\{") else text
  if body[:1] not in ("{", "(", "[") or len(list_parts(body[1:-1])) < 2:
    return ""
  depth = 0
  for position, sign in enumerate(body):
    depth += (sign in "({[") - (sign in ")}]")
    if depth == 0:
      return body[0] if position == len(body) - 1 else ""
  return ""


def _is_single(text: str) -> bool:
  """Returns whether a formula is one number or term, and no set that is written otherwise."""
  return len(list_parts(text)) == 1 and not (
      _SET.search(text) or _signs(text) or "=" in text or "matrix" in text or "{array}" in text)


def _by_names(gold: str, answer: str) -> tuple[str, str] | None:
  """Returns values in the order of their names where one formula is x=3, y=5; None if names differ.

  The other may be (x,y)=(3,5), (3,5), or "3, 5".
  """
  gold_values, answer_values = _assigned(gold), _assigned(answer)
  if gold_values and answer_values:
    same = {*gold_values} == {*answer_values}
    return (_tuple(gold_values), _tuple(answer_values)) if same else None
  if not (gold_values or answer_values):
    return gold, answer
  values, tuple_text = (gold_values, answer) if gold_values else (answer_values, gold)
  if _brackets(tuple_text) in ("{", "["):
    return None
  if not _brackets(tuple_text):
    if "=" in tuple_text or len(list_parts(tuple_text)) != len(values):
      return gold, answer
    tuple_text = f"({tuple_text})"
  return (_tuple(values), tuple_text) if gold_values else (tuple_text, _tuple(values))


def _assigned(text: str) -> dict[str, str]:
  """Returns the values of x=3, y=5 or (x,y)=(3,5) by name; empty unless every part is one."""
  text = inequalities.AND.sub(", ", _SYSTEM.sub("", text).replace(r"\\", ", ").replace("&", ""))
  if tuples := _TUPLES.fullmatch(text.strip()):
    names, values = tuples[1].split(","), list_parts(tuples[2])
    pairs = [*zip(names, values, strict=False)] if len(names) == len(values) else []
  else:
    parts = [_NAMED.fullmatch(part) for part in list_parts(text)]
    pairs = [(part[1], part[2]) for part in parts if part] if None not in parts else []
  assignments = {name.strip(): value for name, value in pairs}
  return assignments if len(assignments) == len(pairs) > 1 else {}


def _tuple(values: dict[str, str]) -> str:
  return f"({', '.join(values[name] for name in sorted(values))})"


_IMPLIES = re.compile(r"\\(?:Rightarrow|implies|Longrightarrow|therefore|Leftrightarrow|iff"
                      r"|rightarrow|to)(?![a-zA-Z])|⇒|=>|→")
_THEREFORE = re.compile(r"^\s*(?:\\(?:therefore|Rightarrow|implies)(?![a-zA-Z])|∴|⇒)\s*(?=\S)")
_TURNED = re.compile(r"\s*([^=a-zA-Z]+)=\s*([a-zA-Z])\s*")  # 10 = x
_REMARK = re.compile(r"(?<=\S)\s*\\text\s?\{\s*[,;]?\s*\((?:since|because|as|remainder|i\.e"
                     r"|that is|which"
                     r"|where|after|by|for|from|using|rounded|approximately"
                     r"|(?:double|triple|repeated) root|multiplicity)\b[^()]*\)\s*\}?\s*$"
                     r"|(?<=\S)\s*\(\s*\\text\s?\{\s*(?:since|because|as)\b[^()]*\)\s*$")
_NAMING = re.compile(r"^\s*\\text\s?\{[^{}\d]*(?:\bis|\bare|\bequals|:|=|(?<=\{)\s*(?:exactly"
                     r"|only|just|precisely"
                     r"|about|approximately|around|roughly|simply))\s*\}\s*(?=\S)")
_SIGN = re.compile(
    r"\\not\s?(?:=|<|>|\\[a-zA-Z]+)|\\n?(?:le|ge|lt|gt|leq|geq|leqq|geqq|leqslant|geqslant|mid"
    r"|subset"
    r"|subseteq|sim|cong|parallel|exists)(?![a-zA-Z])|\\(?:ne|neq|ll|gg|lesssim|gtrsim|lessapprox"
    r"|gtrapprox|prec|preceq|succ|succeq|in|notin|ni|to|gets|mapsto|longmapsto|uparrow|downarrow"
    r"|(?:long|Long)?(?:left|right|leftright)arrow|(?:Left|Right|Leftright|Longright"
    r"|Longleft)arrow"
    r"|implies|iff|equiv|propto|perp|supset|supseteq|models|vdash|neg|lnot|land|wedge|forall"
    r"|therefore|because|doteq|asymp|simeq|divides)(?![a-zA-Z])"
    r"|<=|>=|!=|=>|->|[<>≤≥≠→⇒∣∤≲≳≪≫∝∼]")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_ORDER = ("<", ">", "<=", ">=", "!=")
_SPELLINGS = {
    r"\le": "<=", r"\leq": "<=", r"\leqslant": "<=", r"\leqq": "<=", "≤": "<=", r"\lt": "<",
    r"\ge": ">=", r"\geq": ">=", r"\geqslant": ">=", r"\geqq": ">=", "≥": ">=", r"\gt": ">",
    r"\ne": "!=", r"\neq": "!=", "≠": "!=", r"\not=": "!="}
_SET = re.compile(r"\\infty|\\cup|\\mathbb|\\setminus|\\emptyset|^\s*[(\[].*,.*[)\]]\s*$")
_BOUND = re.compile(
    r"\b(?:(?:or|and) (?:so )?(?:more|less|fewer|greater|higher|lower|above|below|larger|smaller"
    r"|bigger"
    r"|up|over"
    r"|under|so on|else|another)|at (?:least|most)|(?:more|less|fewer|greater|larger|smaller"
    r"|higher|lower"
    r"|bigger|other) than|not|never|except|multiples?|divisible|divides|divisors?|factors?"
    r"|exceed\w*|up to"
    r"|between|unless|if|plus|minus|negative|under|over|above|below|upwards?|even|odd|any|all|none"
    r"|unknown|possibly|maybe|perhaps|either|neither|but|squared|cubed|factorial|wrong|false"
    r"|approaches|tends|depends|without|remainder|times|half|twice|double|per cent of|mod"
    r"|hundred|thousand|million|billion|trillion|dozens?|to(?= [-({\d]))\b")
_SYSTEM = re.compile(r"\\(?:begin|end)\{(?:cases|aligned|gathered|split|array)\}(?:\{[lcr]+\})?")
_TUPLES = re.compile(r"\(\s*([a-zA-Z](?:\s*,\s*[a-zA-Z])+)\s*\)\s*=\s*\((.+)\)")
_NAMED = re.compile(r"\s*([a-zA-Z])\s*=\s*([^=]+)")
_GREEK = ("alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu"
          " nu xi pi"
          " rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma"
          " Phi Psi"
          " Omega")
_READ = frozenset(_GREEK.split() + (
    "frac sqrt cdot times div infty cup cap setminus binom sum prod int lim sin cos tan cot sec"
    " csc"
    " arcsin arccos arctan sinh cosh tanh coth ln log exp lg min max gcd lcm det lfloor rfloor"
    " lceil"
    " rceil lvert rvert left right begin end mathbb mathbf mathrm mathcal mathit mathsf mathfrak"
    " text"
    " textbf textit textrm mbox operatorname circ degree angle triangle overline bar hat vec dot"
    " tilde"
    " emptyset varnothing pm mp over mod bmod pmod ell hbar partial prime quad qquad approx"
    " widehat"
    " complement Re Im dfrac tfrac cfrac choose boxed underline star ast bullet bigcup"
    " bigcap limits oplus square parallel mid lVert rVert Vert vert lbrace rbrace lbrack rbrack"
    " sup"
    " inf arg deg dim ker Pr nolimits substack underbrace overbrace").split() +
    ("le ge ne leq geq neq lt gt leqslant geqslant in to equiv").split())
