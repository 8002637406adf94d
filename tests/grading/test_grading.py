"""Extraction and the verdicts that need no algebra, against pairs written by hand."""

import time

import pytest

from jaxrl_llm.grading import grading, normalise
from jaxrl_llm.grading.grading import Question, Verdict, judge

BOXES = [
    (r"\boxed{5}", "5"),
    (r"a \boxed{3} b \boxed{2} c", "2"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\{1,2\}}", r"\{1,2\}"),
    (r"\boxed{[1,2\}}", r"[1,2\}"),
    (r"\boxed{\boxed{5}}", "5"),
    (r"\boxed{\boxed{3}+1}", "3+1"),
    (r"\boxed{5} and \boxed{6", ""),
    (r"\boxed{5} and \boxed", ""),
    (r"\boxed{5}. I put it in \boxed, as told.", "5"),
    (r"\boxed{5} is in \boxed{}", "5"),
    (r"\boxed{5 so \boxed{6}", "6"),
    (r"\boxed{ \boxed{7}", "7"),
    (r"\boxed {8}", "8"),
    (r"\fbox{9}", "9"),
    (r"\boxed{}", ""),
    (r"\boxed 5", "5"),
    (r"so $x = \boxed 12.$", "12"),
    (r"$\boxed \frac12$ is it", r"\frac12"),
    (r"\boxed{3} or \boxed 4 then", "4"),
    (r"\boxed word", None),
    ("5", None),
    ("", None),
    (r"x } \boxed{4} {", "4"),
    (r"\boxed{a\\}", r"a\\"),
    (r"{\boxed{1}} \text{b}", "1"),
]


@pytest.mark.parametrize("text, content", BOXES)
def test_last_boxed(text, content):
  assert grading.last_boxed(text) == content


def test_the_first_box_or_a_search_for_the_next_brace_would_be_caught():
  """Two usual mistakes disagree with the table."""
  def first(text):
    return text.split(r"\boxed{", 1)[1].split("}")[0] if r"\boxed{" in text else None

  def to_next_brace(text):
    return text.rsplit(r"\boxed{", 1)[1].split("}")[0] if r"\boxed{" in text else None

  for wrong in (first, to_next_brace):
    assert any(wrong(text) != content for text, content in BOXES)


def test_after_thinking():
  assert grading.after_thinking("<think>5</think>6") == "6"
  assert grading.after_thinking("5</think>6</think>7") == "7"
  assert grading.after_thinking("<think>5") == ""
  assert grading.after_thinking("5") == "5"
  assert judge("math", r"<think>\boxed{1}</think> none", "1") == Verdict(False, "missing")


@pytest.mark.parametrize("a, b", [
    (r"\dfrac{1}{2}", r"\frac12"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"\left( 1 , 2 \right)", "(1,2)"),
    (r"$x + 1$.", "x+1"),
    (r"1,\!000", "1,000"),
    (r"{5}", "5"),
    (r"\mathrm{cm}", "cm"),
    ("a\\;b", "ab"),
])
def test_normalize_makes_equal(a, b):
  assert grading.normalize(a) == grading.normalize(b)


@pytest.mark.parametrize("a, b", [("1 1/2", "11/2"), (r"\{1\}", "1"), ("x", "X"),
                                  (r"\sqrt2", r"\sqrt3"), (r"\leftarrow", "arrow"), ("-1", "1"),
                                  (r"50\%", "50"), ("{1}+{2}", "1}+{2")])
def test_normalize_keeps_apart(a, b):
  assert grading.normalize(a) != grading.normalize(b)


@pytest.mark.parametrize("text, read", [
    ("So he has 42<|endoftext|>", "So he has 42"),
    ("42<|im_end|>\n<|im_start|>user 43", "42"),
    ("42</s>", "42"),
    ("42<end_of_turn>44", "42"),
    ("42<\uff5cend\u2581of\u2581sentence\uff5c>", "42"),
    ("<think>41<|endoftext|></think>42", ""),
    ("<|begin_of_thought|>41<|end_of_thought|> 42", "<|begin_of_thought|>41<|end_of_thought|> 42"),
    ("<|channel|>final<|message|>42<|return|>", "<|channel|>final<|message|>42"),
    ("a < |b| > c", "a < |b| > c"),
    ("cafe\u0301", "caf\u00e9"),
])
def test_written_is_what_precedes_a_special_token(text, read):
  assert normalise.written(text) == read


@pytest.mark.parametrize("text, read", [
    ("\uff14\uff12\uff05", "42%"), ("x\u00b2", "x^2"), ("x\u00b9\u00b2", "x^{12}"),
    ("8\u00bd", "8 1/2"), ("\u221a2", r"\sqrt{2}"), ("\u22123", "-3"), ("\u00a042", " 42"),
    ("caf\u00e9", "caf\u00e9"), ("42", "42"),
])
def test_readable(text, read):
  assert normalise.readable(text) == read


def test_every_kind_reads_the_normalised_text():
  for kind, gold, text in (("exact", "caf\u00e9", "cafe\u0301<|endoftext|>"),
                           ("numeric", "42", "\uff14\uff12<|endoftext|>43"),
                           ("math", "\\text{caf\u00e9}", "\\boxed{\\text{cafe\u0301}}<|im_end|>"),
                           ("strict", "42", "#### 42<|im_end|>"),
                           ("choice", "B", "\uff08B\uff09<|endoftext|>(C)")):
    assert judge(kind, text, gold).correct, kind
  assert not judge("exact", "cafe", "caf\u00e9").correct


@pytest.mark.parametrize("completion, option", [  # answer_forms.jsonl has more
    (r"\boxed{B}", "B"),
    (r"\boxed{d}", "D"),
    ("the answer is (J).", "J"),
    ("not (A) but (B)", "B"),
    ("so **D**", "D"),
    ("B)", "B"),
    ("A. first\nC. third", None),
    ("C. third\nbecause", "C"),
    ("Answer: I think (B)", "B"),
    ("A cat sat.", None),
    ("", None),
    (r"\boxed{Because}", None),
    (r"\boxed{42} so (B)", None),
    ("答案：B", "B"),
    ("ANSWER: c", "C"),
    ("(B) because (A) is wrong", "B"),
    ("(B). Not (A).", "B"),
    ("answer: because of it", None),
    ("Bad", None),
    ("answer is (K)", None),
])
def test_letter(completion, option):
  assert grading.letter(completion) == option


@pytest.mark.parametrize("kind, completion, answer, verdict", [
    ("exact", "  a  b\n", "a b", Verdict(True, "string")),
    ("exact", "ab", "a b", Verdict(False, "string")),
    ("exact", r"so \boxed{a b}", "a b", Verdict(True, "string")),
    ("exact", "", "x", Verdict(False, "missing")),
    ("exact", "$5", "$5", Verdict(True, "string")),
    ("numeric", "about 27.0", "27", Verdict(True, "number")),
    ("numeric", "5", "6", Verdict(False, "number")),
    ("numeric", r"\boxed{5} 6", "5", Verdict(True, "number")),
    ("numeric", "none", "6", Verdict(False, "missing")),
    ("numeric", "5", "x", Verdict(False, "none", "the answer 'x' is not one number")),
    ("numeric", "5", "1, 5", Verdict(False, "none", "the answer '1, 5' is not one number")),
    ("numeric", "#### 72 or 3 times 24", "72", Verdict(True, "number")),
    ("numeric", "Answer: 72\nas 3 is odd", "72", Verdict(True, "number")),
    ("numeric", "Answer: 72. I am sure that this answer is right.", "72", Verdict(True, "number")),
    ("numeric", "I had 72, but the answer is none.", "72", Verdict(False, "missing")),
    ("numeric", r"it is 2\sqrt{3}", "3", Verdict(False, "missing")),
    ("numeric", r"\boxed{2\sqrt3}", "3", Question("3", r"2\sqrt3")),
    ("numeric", r"\boxed{2^{10}}", "1024", Question("1024", "2^{10}")),
    ("numeric", r"\boxed{12:30}", "30", Question("30", "12:30")),
    ("choice", "(B)", "b", Verdict(True, "letter")),
    ("choice", "(B)", "C", Verdict(False, "letter")),
    ("choice", "?", "C", Verdict(False, "missing")),
    ("choice", "(B)", "42", Verdict(False, "none", "the answer '42' is no letter from A to J")),
    ("math", "5", "5", Verdict(True, "number")),
    ("math", "5 or 6", "5", Verdict(False, "missing")),
    ("strict", "5", "5", Verdict(False, "missing")),
    ("strict", "#### 5", "5", Verdict(True, "number")),
    ("strict", r"\boxed{5}", "5", Verdict(True, "number")),
    ("math", "The answer is $x^2 + 1$.", "x^2+1", Verdict(True, "string")),
    ("math", "It is $x$ or $y$.", "x", Verdict(False, "string")),
    ("math", r"\boxed{}", "5", Verdict(False, "missing")),
    ("math", r"\boxed{x+1}", "x + 1", Verdict(True, "string")),
    ("math", r"\boxed{073}", "73", Verdict(True, "number")),
    ("math", r"\boxed{27.0}", "27", Verdict(True, "number")),
    ("math", r"\boxed{3}", "['3']", Verdict(True, "number")),
    ("math", r"\boxed{4, 3}", "['3', '4']", Question("3, 4", "4, 3")),
    ("math", r"\boxed{12}", "13", Verdict(False, "number")),
    ("math", r"\boxed{$5$}", r"$\boxed{5}$", Verdict(True, "number")),
    ("math", r"\boxed{0.5}", "0.6", Verdict(False, "number")),
    ("math", r"\boxed{1/2}", "$0.5$", Verdict(True, "number")),
    ("math", r"\boxed{\sqrt{2}}", "$1.414$", Question("1.414", r"\sqrt{2}", 3)),
    ("math", r"\boxed{1.414}", r"\sqrt{2}", Question(r"\sqrt{2}", r"\frac{1414}{1000}")),
    ("math", r"\boxed{1} and \boxed{x}", "x, 1", Question("x, 1", "1, x")),
    ("math", r"\boxed{1}, no, \boxed{2}", "2", Verdict(True, "number")),
    ("math", r"\boxed{5\text{ km}}", "5 m", Verdict(False, "number")),
    ("math", r"\boxed{101_3}", "101_2", Verdict(False, "number")),
    ("math", rf"\boxed{{{'x+' * 5000}x}}", "x", Verdict(False, "length")),
    ("math", r"\boxed{1}", " ", Verdict(False, "none", "no answer")),
    ("exact", "", "", Verdict(False, "none", "no answer")),
])
def test_judge(kind, completion, answer, verdict):
  assert judge(kind, completion, answer) == verdict


@pytest.mark.parametrize("kind, a, b", [
    ("math", r"\boxed{1,000}", r"so \boxed{1000.0}"),
    ("math", r"\boxed{\dfrac12}", r"\boxed{\frac{1}{2}}"),
    ("numeric", "is 1/2", r"\boxed{\frac{2}{4}}"),
    ("choice", "(B)", "answer: B"),
    ("exact", " a  b", "a b"),
    (None, ":1+2=3", "=3"),
    (None, r"\boxed{x}", r"= 7 \boxed{ x }"),
    (None, "#### 4", "4"),
])
def test_answer_key_of_equal_answers(kind, a, b):
  assert grading.answer_key(a, kind) == grading.answer_key(b, kind) is not None


@pytest.mark.parametrize("kind, a, b", [("math", r"\boxed{1}", r"\boxed{2}"), ("numeric", "1", "2"),
                                        ("choice", "(A)", "(B)"), ("exact", "ab", "a b"),
                                        (None, "=1", "=2")])
def test_answer_key_of_different_answers(kind, a, b):
  assert grading.answer_key(a, kind) != grading.answer_key(b, kind)


def test_answer_key_without_an_answer():
  assert [grading.answer_key("", kind) for kind in (None, *grading.KINDS)] == [None] * 6
  assert grading.answer_key("no box", "math") is None


def test_unknown_kind_lists_the_kinds():
  with pytest.raises(ValueError, match=r"'maths'.*choice, exact, math, numeric"):
    judge("maths", "1", "1")


@pytest.mark.parametrize("text", [
    r"\boxed{" * 15000, "{" * 100000, r"\boxed{x}" * 12000, "1,111" * 20000, "1 " * 50000,
    "9" * 100000, "\n" * 100000, "answer is " + " " * 100000, "(A)" * 30000,
    r"\boxed{" + "{" * 40000 + "}" * 40001, "1/" * 50000, "1/222" + "2" * 99000 + ".5",
    r"\boxed{\text{" + r"\text{" * 10000 + "}" * 10002
], ids=range(13))
@pytest.mark.parametrize("kind", grading.KINDS)
def test_hostile_texts_take_no_time(kind, text):
  """A quadratic pattern takes minutes at these lengths."""
  begin = time.thread_time()
  judge(kind, text, "A" if kind == "choice" else "7")
  assert time.thread_time() - begin < 10.0
