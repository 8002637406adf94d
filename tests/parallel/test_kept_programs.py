"""A program that is kept is the one that would be compiled, and is taken only where it is."""

import functools
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxrl_llm.config import load_plugins
from jaxrl_llm.config import plugins as plugins_lib
from jaxrl_llm.parallel import kept_programs
from jaxrl_llm.parallel.kept_programs import ADDRESS, Kept, canonical, kept

# JAX's own cache must not know these programs, because what comes from there is not kept.
NEW = itertools.count(random.SystemRandom().randrange(1 << 22))


@struct.dataclass
class Pair:
  first: jax.Array
  second: jax.Array


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.setattr(plugins_lib, "LOADED", set())
  kept_programs.keep_in(tmp_path)
  yield tmp_path
  kept_programs.keep_in(None)


def scaled(pair: Pair, *, factor: float, rule: str = "plain") -> tuple[Pair, jax.Array]:
  """A function whose result tells what it was made from."""
  sign = -1.0 if rule == "negative" else 1.0
  return Pair(pair.first * factor * sign, pair.second), pair.first.sum()


scaled.__module__ = "jaxrl_llm.scaled"  # functions of the package are known by their names


def program(factor: float, name: str = "scaled", traces: list | None = None, **options) -> Kept:
  """The kept program of a new start; `traces` grows when it is traced."""
  def traced(pair, rule="plain"):
    if traces is not None:
      traces.append(factor)
    return scaled(pair, factor=factor, rule=rule)

  return kept(jax.jit(traced, static_argnames="rule", **options), name,
              functools.partial(scaled, factor=factor), static_names=("rule",))


def files(folder) -> list:
  return sorted(folder.glob("*.program"))


def pair() -> Pair:
  return Pair(jnp.arange(3.0), jax.random.key(1))


def test_a_second_start_does_not_trace(folder):
  factor, traces = float(next(NEW)), []
  first = program(factor, traces=traces)(pair())
  second = program(factor, traces=traces)(pair())
  assert len(traces) == 1 and len(files(folder)) == 1
  np.testing.assert_array_equal(first[0].first, second[0].first)
  assert isinstance(second[0], Pair) and second[0].second == jax.random.key(1)


def wrong_without_statics(jitted, name, *statics, **options):
  return kept(jitted, name, **options)


@pytest.mark.parametrize("make", (kept, wrong_without_statics))
def test_other_statics_are_another_program(folder, make):
  factors = float(next(NEW)), float(next(NEW))
  results = []
  for factor in factors:
    function = functools.partial(scaled, factor=factor)
    results.append(make(jax.jit(function), "scaled", function)(pair())[0].first[1])
  assert (results == list(factors)) == (make is kept)


def test_shapes_dtypes_and_static_arguments_are_other_programs(folder):
  factor = float(next(NEW))
  run = program(factor)
  longer = Pair(jnp.arange(4.0), jax.random.key(1))
  whole = Pair(jnp.arange(3), jax.random.key(1))
  assert run(pair())[0].first.shape == (3,) and run(longer)[0].first.shape == (4,)
  assert run(pair(), rule="negative")[0].first[1] == -factor
  assert run(whole)[1].dtype == jnp.int32
  assert len(files(folder)) == 4
  again = program(factor)
  assert again(pair(), rule="negative")[0].first[1] == -factor
  assert again(pair())[0].first[1] == factor


def test_donated_arguments_stay_donated(folder):
  factor = float(next(NEW))
  for _ in range(2):
    argument = pair()
    program(factor, donate_argnums=0)(argument)
    assert argument.first.is_deleted()


def test_a_torn_file_is_compiled_again(folder):
  factor, traces = float(next(NEW)), []
  program(factor, traces=traces)(pair())
  file = files(folder)[0]
  file.write_bytes(file.read_bytes()[:100])
  assert program(factor, traces=traces)(pair())[0].first[1] == factor
  assert len(traces) == 2


def test_a_change_of_the_sources_traces_and_does_not_compile(folder, monkeypatch):
  factor, traces, compiled = float(next(NEW)), [], []
  program(factor, traces=traces)(pair())
  monkeypatch.setattr(kept_programs, "sources", lambda: "another")
  monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_: compiled.append(factor))
  for _ in range(2):
    assert program(factor, traces=traces)(pair())[0].first[1] == factor
  assert len(traces) == 2 and not compiled


def test_what_has_only_an_address_is_not_kept(folder):
  function = functools.partial(scaled, factor=float(next(NEW)))
  run = kept(jax.jit(function), "scaled", object())
  run(pair())
  assert run.identity is None and not files(folder)


def test_with_plugins_nothing_is_kept(folder, tmp_path_factory):
  plugin = tmp_path_factory.mktemp("plugin") / "plugin.py"
  plugin.write_text("VALUE = 1\n")
  load_plugins((str(plugin),))
  program(float(next(NEW)))(pair())
  assert not files(folder)


def test_while_jax_traces_the_function_itself_is_called(folder):
  factor = float(next(NEW))
  run = program(factor)
  assert jax.eval_shape(run, pair())[0].first.shape == (3,)
  assert jax.jit(run)(pair())[0].first[1] == factor
  assert not files(folder)


def test_the_environment_has_no_address_and_knows_the_sources():
  assert not ADDRESS.search(kept_programs.environment())


def test_sets_are_written_in_one_order():
  names = [f"name{index}" for index in range(20)]
  assert canonical(frozenset(names)) == canonical(set(reversed(names)))
  assert canonical((1, "a")) != canonical((1, "b"))
  assert canonical(np.arange(3)) != canonical(np.arange(3) + 1)
