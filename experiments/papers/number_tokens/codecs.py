"""Number tokens: digits in groups, each of which says its power of ten.

  12345678.1234   12 m 345 k 678 . 123 p 400 pp    variant "marker": a marker is a separate token
                  12m 345k 678 . 123p 400pp        variant "vocabulary": digits and marker are one

Triadic Suffix Tokenization, arXiv 2604.11582. The scheme is as in its author's converter; the paper
has no experiments, so nothing is claimed for it. Here digits are moved as text and exponents are
expanded by `decimal`: no number passes through a float, which the converter's does and loses
digits.
"""

import dataclasses
import itertools
import re
from decimal import Decimal
from typing import NamedTuple

from tokenizers import NormalizedString

from jaxrl_llm.config import ConfigError

VARIANTS = ("marker", "vocabulary")
LETTERS = "kmbtq"  # markers of 10^3 to 10^15; above them e18, e21, ...
FRACTION = "p"  # repeated by depth
LEVELS = 5  # published: from 10^-15 to 10^18, 33 orders of magnitude
MOST_DIGITS = 18  # of a group; 10^18 strings are no vocabulary, but a bound on requests

# [0-9], because \d is also a digit of other scripts, which are no tokens
_BEFORE = r"(?<!\w)(?<![0-9]\.)"
_AFTER = r"(?!\w)(?!\.[0-9])"
_SEPARATED = (r"[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}"  # thousands, or lakhs: 12,34,567
              r"|[0-9]{1,3}(?:[ \u00a0\u202f][0-9]{3})+"
              r"|[0-9]{1,3}(?:['\u2019][0-9]{3})+")
_DIGITS = r"|[0-9]+"
_NUMBER = r"(?P<integer>{integer})(?:\.(?P<fraction>[0-9]+))?"
_BARE = r"(?<!\.)\.(?P<bare>[0-9]+)"  # no digit before the point
_EXPONENT = r"(?P<exponent>[eE][+-]?[0-9]{1,3})?"
_EURO = r"(?P<{0}_integer>[0-9]{{1,3}}(?:\.[0-9]{{3}})+|[0-9]+)(?:,(?P<{0}_fraction>[0-9]+))?"
_PADDED_NUMBER = re.compile(
    rf"(?:(?<=€)|(?<=€\s)){_EURO.format('after')}(?!\w)(?![.,][0-9])"
    rf"|(?<!\w)(?<![0-9][.,]){_EURO.format('before')}(?=\s?€)"
    rf"|{_BEFORE}(?:{_NUMBER.format(integer=_SEPARATED + _DIGITS)}|{_BARE})"
    rf"{_EXPONENT}{_AFTER}")
_LOSSLESS_NUMBER = re.compile(rf"{_BEFORE}(?:{_NUMBER.format(integer=_DIGITS[1:])}|{_BARE})"
                              rf"{_AFTER}")
_CURRENCY = "$€£¥"


class Group(NamedTuple):
  """Digits, and the exponent of ten of the last of them: a number is the sum of digits 10^exponent.
  """

  digits: str
  exponent: int


@dataclasses.dataclass(frozen=True)
class TstNumberCodec:
  """Writes the numbers of a text in groups, and reads them back.

  It serves `tokenizers.pre_tokenizers.PreTokenizer.custom` and `tokenizers.decoders.Decoder.custom`
  as their object. `tokenizers` cannot save those, so a tokenizer that is saved has the new tokens
  and gets texts of `encode`. The integer part is divided from the right, the fraction from the
  left. With padding, fraction groups are filled with zeros on the right: 0.1 and 0.10 become one
  text, so that `decode` gives back an equal number, not the same text. Thousands separators are
  dropped, exponents of up to three digits expanded, and a currency symbol before or a percent sign
  after the number is separated by a space; the point is the decimal mark unless the currency is the
  euro. Words, versions (1.2.3) and codes (v2, 12k) are no numbers and stay as they are.

  `lossless` changes nothing but digits: `decode(encode(text)) == text` (own derivation). Boundary
  groups have as many digits as the text. Separators and exponents then stay text, so 1,234 is two
  numbers, and 1e5 is none.

  Attributes:
    variant: "marker" or "vocabulary".
    group: digits of a group. Values other than 3 are from a later abstract (second hand). Their
      markers have the same letters, which is our choice, and e<exponent> above them.
    pad: fills the leading integer group with zeros, too. The author's converter does not; the
      paper's third version reportedly does (second hand, unconfirmed).
    lossless: as above; not with `pad`.

  Raises:
    ConfigError: an unknown variant, a group that is no number of digits, lossless with pad.
  """

  variant: str = "vocabulary"
  group: int = 3
  pad: bool = False
  lossless: bool = False

  def __post_init__(self):
    if self.variant not in VARIANTS:
      raise ConfigError(f"variant = {self.variant!r}: {' or '.join(map(repr, VARIANTS))} was "
                        f"expected. Fix: variant={VARIANTS[0]!r}.")
    if not isinstance(self.group, int) or not 1 <= self.group <= MOST_DIGITS:
      raise ConfigError(f"group = {self.group!r}: 1 to {MOST_DIGITS} digits were expected. "
                        "Fix: group=3.")
    if self.lossless and self.pad:
      raise ConfigError("lossless = True with pad = True: padding loses how many digits there "
                        "were. Fix: pad=False.")

  def encode(self, text: str) -> str:
    """Returns the text with its numbers in groups, separated by spaces.

    Raises:
      ValueError: with lossless, a text that already looks like groups (12k 345).
    """
    encoded = "".join(piece if isinstance(piece, str) else " ".join(piece)
                      for piece in self._split(text))
    if self.lossless and self.decode(encoded) != text:
      raise ValueError(f"text {text!r} has something that reads as number tokens, so it would not "
                       f"come back: {self.decode(encoded)!r}. Fix: another text, or "
                       "lossless=False.")
    return encoded

  def decode(self, text: str) -> str:
    """Returns a text of `encode` with its numbers in digits; what is no number stays."""
    pieces, end = [], 0
    for start in re.finditer(r"(?<!\w)(?=[0-9.])", text):
      if start.start() >= end and (number := self._number_at(text, start.start())):
        pieces += [text[end:start.start()], number[0]]
        end = number[1]
    return "".join([*pieces, text[end:]])

  def pieces(self, text: str) -> list[str]:
    """Returns the pre-tokens: the pieces of the numbers, and the texts between."""
    nested = ([piece] if isinstance(piece, str) else piece for piece in self._split(text))
    return list(itertools.chain.from_iterable(nested))

  def join(self, tokens: list[str]) -> str:
    """Returns the text of tokens in order; digits that follow on digits begin another number."""
    text = ""
    for before, token in itertools.pairwise(["", *tokens]):
      text += " " * (self._is_token(before) and self._is_token(token)) + token
    return self.decode(text)

  def groups(self, integer: str, fraction: str = "") -> list[Group]:
    """Returns the groups of a number, without markers.

    Args:
      integer, fraction: its digits before and after the point; either may be empty.
    """
    cut = [integer[max(0, end - self.group):end] for end in range(len(integer), 0, -self.group)]
    groups = [Group(digits, level * self.group) for level, digits in enumerate(cut)][::-1]
    if self.pad and groups:
      groups[0] = Group(groups[0].digits.zfill(self.group), groups[0].exponent)
    for begin in range(0, len(fraction), self.group):
      digits = fraction[begin:begin + self.group]
      digits = digits if self.lossless else digits.ljust(self.group, "0")
      groups.append(Group(digits, -begin - len(digits)))
    return groups

  def new_tokens(self, integer_levels: int = LEVELS, fraction_levels: int = LEVELS) -> list[str]:
    """Returns the tokens that a vocabulary with digits and a point lacks.

    For the variant "vocabulary" there are 10,000 with `pad`: 1,000 for each of the 10 marked
    levels. Leading groups without padding have 110 more of 1 and 2 digits at each level of
    integers, and last groups in lossless mode at each level of fractions. For a tokenizer of
    transformers: `tokenizer.add_tokens([AddedToken(token, single_word=True) for token in
    codec.new_tokens()])` and model.vocab_size of at least its new length.

    Args:
      integer_levels, fraction_levels: marked levels; the published ones are 5 and 5.
    """
    integers = [self._marker(level) for level in range(1, integer_levels + 1)]
    fractions = [FRACTION * depth for depth in range(1, fraction_levels + 1)]
    if self.variant == "marker":
      return integers + fractions
    return ([digits + marker for marker in integers for digits in self._digits(not self.pad)]
            + [digits + marker for marker in fractions for digits in self._digits(self.lossless)])

  def unit_tokens(self) -> list[str]:
    """Returns the digits without a marker, which a vocabulary of numbers may already have."""
    return self._digits(self.variant == "marker" or not self.pad)

  def pre_tokenize(self, pretokenized) -> None:
    """Splits a `tokenizers.PreTokenizedString`; offsets into the text are lost."""
    pretokenized.split(lambda _, text: [NormalizedString(piece) for piece in self.pieces(str(text))
                                        if piece])

  def decode_chain(self, tokens: list[str]) -> list[str]:
    """Returns what `tokenizers` joins to the text of tokens."""
    return [self.join(tokens)]

  def _digits(self, shorter: bool) -> list[str]:
    widths = range(1 if shorter else self.group, self.group + 1)
    return [f"{value:0{width}d}" for width in widths for value in range(10**width)]

  def _marker(self, level: int) -> str:
    """Returns the marker of level `level` >= 1 of the integer part."""
    return LETTERS[level - 1] if level <= len(LETTERS) else f"e{level * self.group}"

  def _split(self, text: str) -> list[str | list[str]]:
    """Returns the texts between numbers as they are, and the tokens of each number as a list."""
    pieces: list[str | list[str]] = []
    end = 0
    for match in (_LOSSLESS_NUMBER if self.lossless else _PADDED_NUMBER).finditer(text):
      between = text[end:match.start()]
      end = match.end()
      set_apart = not self.lossless and text[match.start() - 1:match.start()] in list(_CURRENCY)
      pieces += [between + " " * set_apart, self._tokens(*_parts(match))]
      if not self.lossless and text[end:end + 1] == "%":
        pieces.append(" ")
    return [*pieces, text[end:]]

  def _tokens(self, integer: str, fraction: str) -> list[str]:
    """Returns the tokens of a number of these digits."""
    if not integer and not self.lossless:
      integer = "0"
    tokens, depth = [], 0
    for digits, exponent in self.groups(integer, fraction):
      if exponent < 0:
        tokens += ["."] * (depth == 0)
        depth += 1
        marker = FRACTION * depth
      else:
        marker = self._marker(exponent // self.group) if exponent else ""
      separate = self.variant == "marker" and marker
      tokens += [digits, marker] if separate else [digits + marker]
    return tokens

  def _is_token(self, text: str) -> bool:
    """Returns whether a text is digits, a marker or both."""
    return re.fullmatch(rf"[0-9]+{self._markers}?|{self._markers}", text) is not None

  @property
  def _markers(self) -> str:
    return rf"(?:[{LETTERS}]|e[0-9]+|{FRACTION}+)"

  def _number_at(self, text: str, start: int) -> tuple[str, int] | None:
    """Returns (digits, where it ends) of the number whose tokens begin at `start`, or None."""
    space = " " if self.variant == "marker" else ""
    group = re.compile(rf"([0-9]{{1,{self.group}}})(?:{space}({self._markers}))?(?!\w)")
    digits, level, match = "", None, group.match(text, start)
    while match:
      this = self._level(match[2] or "")
      if this is None or (level is not None and (this, len(match[1])) != (level - 1, self.group)):
        return None
      digits, level, start = digits + match[1], this, match.end()
      if level == 0:
        break
      match = group.match(text, start + 1) if text[start:start + 1] == " " else None
    if level:  # the units are missing
      return None
    fraction, end = self._fraction_at(text, start, group)
    if fraction:
      return f"{digits}.{fraction}", end
    return (digits, start) if digits else None

  def _fraction_at(self, text: str, start: int, group: re.Pattern) -> tuple[str, int]:
    """Returns (digits, where it ends) of the point and its groups at `start`; none: no digits."""
    point = re.compile(r" ?\. ?").match(text, start)
    match = group.match(text, point.end()) if point else None
    digits, depth = "", 1
    while match and match[2] == FRACTION * depth:
      digits, depth, start = digits + match[1], depth + 1, match.end()
      full_group = len(match[1]) == self.group and text[start:start + 1] == " "
      match = group.match(text, start + 1) if full_group else None
    return digits, start

  def _level(self, marker: str) -> int | None:
    """Returns the level of a marker of the integer part, 0 for none; None for another marker."""
    if marker in LETTERS:
      return LETTERS.index(marker) + 1 if marker else 0
    exponent = int(marker[1:]) if marker[0] == "e" else 0
    level = exponent // self.group
    return level if level > len(LETTERS) and level * self.group == exponent else None


def _parts(match: re.Match) -> tuple[str, str]:
  """Returns the digits of a number before and after the point, its exponent expanded."""
  groups = {name: value or "" for name, value in match.groupdict().items()}
  integer = next((groups[name] for name in ("integer", "after_integer", "before_integer")
                  if groups.get(name)), "")
  fraction = next((groups[name]
                   for name in ("fraction", "bare", "after_fraction", "before_fraction")
                   if groups.get(name)), "")
  integer = re.sub(r"\D", "", integer)
  if groups.get("exponent"):
    plain = format(Decimal(f"{integer or 0}.{fraction}{groups['exponent']}"), "f")
    integer, _, fraction = plain.partition(".")
  return integer, fraction
