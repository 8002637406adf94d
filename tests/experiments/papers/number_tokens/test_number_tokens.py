"""papers/number_tokens/codecs.py: the golden outputs of the scheme, its inverse, its vocabulary."""

import re
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import PreTrainedTokenizerFast

from experiments.papers.number_tokens.codecs import TstNumberCodec
from jaxrl_llm.tasks import tokenizer as tokenizers

# arXiv 2604.11582, README of the author's converter
GOLDEN = {
    "12345678.1234": "12m 345k 678 . 123p 400pp",
    "0.0045": "0 . 004p 500pp",
    "-123.45": "-123 . 450p",
    "23.5%": "23 . 500p %",
    "1234%": "1k 234 %",
    "$12,345.67": "$ 12k 345 . 670p",
    "1.23e-4": "0 . 000p 123pp",
    "12,34,567.89": "1m 234k 567 . 890p",
    "0.19": "0 . 190p",
    "0.9": "0 . 900p",
}
# From the description of the scheme
FURTHER = {
    "€1.234,56": "€ 1k 234 . 560p",
    "1.234,56 €": "1k 234 . 560p €",
    "12'345": "12k 345",
    "12 345 678": "12m 345k 678",
    "1e18": "1e18 000q 000t 000b 000m 000k 000",
    "1e-15": "0 . 000p 000pp 000ppp 000pppp 001ppppp",
    "12345678901234567890.5": "12e18 345q 678t 901b 234m 567k 890 . 500p",
    "9.11 < 9.9": "9 . 110p < 9 . 900p",
}
PADDED = [TstNumberCodec(variant, pad=pad) for variant in ("marker", "vocabulary")
          for pad in (False, True)]
LOSSLESS = [TstNumberCodec(variant, group=group, lossless=True)
            for variant in ("marker", "vocabulary") for group in (1, 2, 3, 4)]
MARKER = re.compile(r"(\d)([kmbtq]|e\d+|p+)\b")


def random_numbers(count: int, seed: int = 0) -> list[str]:
  """Numbers of 1 to 25 digits, with leading and trailing zeros, a sign, a point or neither."""
  rng = np.random.default_rng(seed)
  digits = ["".join(map(str, rng.integers(0, 10, size))) for size in rng.integers(1, 26, count)]
  numbers = []
  for text, point, sign in zip(digits, rng.random(count), rng.choice(["", "-", "+"], count),
                               strict=True):
    cut = int(point * 2 * len(text))  # half of them are integers
    numbers.append(sign + (f"{text[:cut]}.{text[cut:]}" if cut < len(text) else text))
  return numbers


def inverse_fails(codec, numbers: list[str]) -> list[str]:
  return [text for text in numbers if codec.decode(codec.encode(text)) != text]


def value_fails(codec, numbers: list[str]) -> list[str]:
  return [text for text in numbers if Decimal(codec.decode(codec.encode(text))) != Decimal(text)]


@pytest.mark.parametrize("text", [*GOLDEN, *FURTHER])
def test_golden_outputs(text):
  expected = {**GOLDEN, **FURTHER}[text]
  assert TstNumberCodec().encode(text) == expected
  assert TstNumberCodec("marker").encode(text) == MARKER.sub(r"\1 \2", expected)


@pytest.mark.parametrize("codec", LOSSLESS, ids=str)
def test_lossless_gives_back_the_text_of_random_numbers(codec):
  assert inverse_fails(codec, random_numbers(10_000)) == []


@pytest.mark.parametrize("codec", PADDED, ids=str)
def test_padded_gives_back_an_equal_number(codec):
  numbers = random_numbers(10_000)
  exponents = np.random.default_rng(1).integers(-40, 41, 1000).tolist()
  scientific = [f"{text}e{exponent}" for text, exponent in zip(numbers, exponents, strict=False)]
  assert value_fails(codec, numbers + scientific) == []


class ThroughFloat(TstNumberCodec):
  """The converter's way with exponents, for every number: digits are lost."""

  def _tokens(self, integer, fraction):
    integer_part, _, part = f"{float(f'{integer or 0}.{fraction}'):.15f}".partition(".")
    return super()._tokens(integer_part, part)


def test_the_checks_reject_a_float_and_padding():
  numbers = random_numbers(1000)
  assert value_fails(ThroughFloat(), numbers), "a float loses digits"
  assert "0.1" in inverse_fails(TstNumberCodec(), ["0.1", "0.100"]), "padding is not invertible"
  assert TstNumberCodec().encode("0.1") == TstNumberCodec().encode("0.10")
  lossless = TstNumberCodec(lossless=True)
  assert len({lossless.encode(text) for text in ("0.1", "0.10", "0.100", "00.1")}) == 4


@pytest.mark.parametrize("codec", [*PADDED, *LOSSLESS], ids=str)
def test_a_number_is_the_sum_of_its_groups(codec):
  for text in random_numbers(500):
    integer, _, part = text.lstrip("+-").partition(".")
    groups = codec.groups(integer, part)
    total = sum(int(digits) * Decimal(10)**exponent for digits, exponent in groups)
    assert total == Decimal(text.lstrip("+-"))
    assert len({exponent for _, exponent in groups}) == len(groups)


@pytest.mark.parametrize("codec", [*PADDED, *LOSSLESS], ids=str)
@pytest.mark.parametrize("text", [
    "", "no numbers, none at all.", "v2 and x1 of 3.4.5, 12k b52", "a . b ... ' % $ €",
    "192.168.0.1", "\u0663\u0664\u0665",
    "naïve Ziffern: Ⅳ, ½", "two\nlines\tand a tab",
])
def test_a_text_without_numbers_is_unchanged(codec, text):
  assert codec.encode(text) == text == codec.decode(text)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.text(alphabet="0123456789 .,kmpe%$-+'€x", max_size=24), st.sampled_from(LOSSLESS))
def test_lossless_returns_any_text_or_refuses_it(text, codec):
  try:
    encoded = codec.encode(text)
  except ValueError as error:
    assert "reads as number tokens" in str(error)
    return
  assert codec.decode(encoded) == text


def test_lossless_refuses_what_reads_as_groups():
  with pytest.raises(ValueError, match="'12345 men'"):
    TstNumberCodec(lossless=True).encode("12k 345 men")


@pytest.mark.parametrize("codec", [*PADDED, *LOSSLESS], ids=str)
def test_the_vocabulary_covers_the_published_range(codec):
  """33 orders of magnitude: 18 digits before the point and 15 behind, for groups of three."""
  known = {*codec.new_tokens(), *codec.unit_tokens(), "."}
  rng = np.random.default_rng(0)
  for _ in range(300):
    integer, part = rng.integers(1, 6 * codec.group + 1), rng.integers(0, 5 * codec.group + 1)
    digits = "".join(map(str, rng.integers(0, 10, integer + part)))
    text = digits[:integer] + ("." if part else "") + digits[integer:]
    assert set(codec.encode(text).split()) <= known, text
  beyond = codec.encode("1" + "0" * 6 * codec.group)
  assert not set(beyond.split()) <= known


def tokenizer_of(codec, signs: str) -> PreTrainedTokenizerFast:
  """A tokenizer with the codec inside."""
  known = ["<pad>", ".", *signs, *codec.unit_tokens(), *codec.new_tokens()]
  tokenizer = PreTrainedTokenizerFast(
      tokenizer_object=Tokenizer(models.WordLevel({token: i for i, token in enumerate(known)},
                                                  unk_token="<pad>")), pad_token="<pad>")
  tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(codec)
  tokenizer.backend_tokenizer.decoder = decoders.Decoder.custom(codec)
  return tokenizer


@pytest.mark.parametrize("variant", ["marker", "vocabulary"])
def test_a_tokenizer_of_numbers(variant):
  codec = TstNumberCodec(variant, lossless=True)
  tokenizer = tokenizer_of(codec, "+=?")
  text = "1234.5+5678=6912.50?"
  ids = tokenizers.encode(tokenizer, text)  # refuses what does not come back
  assert tokenizer.decode(ids) == text
  spaced = codec.encode(text)
  for sign in "+=?":
    spaced = spaced.replace(sign, f" {sign} ")
  assert tokenizer.convert_ids_to_tokens(ids) == spaced.split()
  apart = tokenizer.convert_tokens_to_ids(["1", "234"])
  assert tokenizer.decode(apart) == "1 234", "units behind units are not thousands"
  with pytest.raises(ValueError, match="does not survive"):
    tokenizers.encode(tokenizer_of(TstNumberCodec(variant), "+"), "0.1")
