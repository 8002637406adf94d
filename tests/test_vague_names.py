"""Few functions bind a name that says nothing; the counter sees every way of binding one."""

import pytest
import vague_names

MOST_SHARE = 0.03


@pytest.mark.parametrize("source, names", [
    ("def found(x):\n  return x", ["found"]),
    ("def _kept(x):\n  return x", ["_kept"]),
    ("def f(x, *, own):\n  return own", ["own"]),
    ("def f(x):\n  data, y = x\n  return y", ["data"]),
    ("def f(x):\n  return [one for one in x]", ["one"]),
    ("def f(x):\n  return map(lambda item: item, x)", ["item"]),
    ("def f(x):\n  if (at := x.find('a')) > 0:\n    return at", ["at"]),
    ("def f(x):\n  x.at[0].set(1)\n  return result(kept=x.data)", []),  # another's names
    ("def f(log_probs, *, row_max):\n  verdicts = log_probs\n  return verdicts", []),
])
def test_the_counter_sees_each_way_of_binding(source, names):
  function, = vague_names.functions(source)
  assert vague_names.vague_names(function) == names


def test_a_function_within_another_is_counted_for_itself():
  source = "def f(x):\n  def g(item):\n    return item\n  return g"
  total, lines = vague_names.count({"x.py": source})
  assert (total, lines) == (2, ["x.py:2 g: item"])


def test_few_functions_bind_a_vague_name():
  total, lines = vague_names.count(vague_names.read_sources([vague_names.PACKAGE]))
  assert total > 1000
  assert len(lines) <= MOST_SHARE * total, "\n".join(lines)
