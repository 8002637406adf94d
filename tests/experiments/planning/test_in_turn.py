"""Products of a compiled text, and seconds of its instructions one after the other."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from experiments.planning import analysis, flops, hlo, in_turn, products, traffic
from experiments.planning.targets import TPU, Chip

HERE = Path(__file__).parent

# Three trips of a product that takes 10 s at the chip's peak and 7 s of its memory, and of an
# addition that takes 6 s of its memory. A copy to the chip's own memory runs beside them.
TEXT = (HERE / "in_turn.hlo").read_text()
PRODUCT = 2 * 32 * 64 * 128
CHIP = Chip(TPU, PRODUCT / 10, 1e9, 4096.0, 1.0, 1.0, "for tests")


def visits_of(text: str):
  module = hlo.parse(text)
  return module, module.visits()[0]


def turns(text: str) -> in_turn.InTurn:
  module, visits = visits_of(text)
  return sum((in_turn.visit_seconds(module, visit, traffic.visit_traffic(module, visit, True), CHIP)
              for visit in visits), in_turn.InTurn())


def operations_of(text: str) -> float:
  module, visits = visits_of(text)
  return sum(visit.times * products.count_operations(module, visit.instruction, visit.computation)
             for visit in visits)


def the_larger_of_sums(text: str) -> float:
  """A wrong estimate: all traffic hides behind all products."""
  module, visits = visits_of(text)
  passed = sum(traffic.visit_traffic(module, visit, True).memory for visit in visits)
  return max(operations_of(text) / CHIP.flops, passed / CHIP.bandwidth)


def test_traffic_hides_behind_the_products_of_its_own_instruction_alone():
  assert turns(TEXT) == in_turn.InTurn(compute=3 * 10.0, memory=3 * 6.0)
  assert the_larger_of_sums(TEXT) == pytest.approx(3 * (7 + 6 + 4))  # the copy's 4 s among them
  assert the_larger_of_sums(TEXT) != pytest.approx(turns(TEXT).seconds)
  fused = TEXT.replace("add(%y, %y)", "bitcast(%y)")  # the addition's traffic hides
  assert turns(TEXT).seconds - turns(fused).seconds == pytest.approx(3 * 6.0)


def test_a_chain_of_fusions_takes_the_turns_of_what_it_computes_alone():
  text = (HERE / "chain.hlo").read_text()
  assert turns(text) == in_turn.InTurn(memory=2 * 4 * 32 * 32 / CHIP.bandwidth)
  assert turns(text.replace("AsyncCollective", "Other")).seconds > turns(text).seconds
  product = "%s.product = f32[8,8]{1,0} convolution(%s0, %s0), dim_labels=bf_oi->bf"
  beside = text.replace("  %s.gather", f"  {product}\n  %s.gather", 1)
  assert turns(beside).seconds > turns(text).seconds, "products beside a start take their turn"


def test_products_of_the_text_are_those_of_the_program():
  def f(x, weights):
    return lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, weights)[0]

  traced = jax.jit(jax.grad(lambda x, w: f(x, w).sum(), 1)).trace(jnp.ones((8, 64)),
                                                                 jnp.ones((5, 64, 64)))
  operations = operations_of(traced.lower().compile().as_text())
  assert operations == flops.products(flops.count(traced.jaxpr).once) == 5 * 3 * 2 * 8 * 64 * 64


def test_the_roofline_takes_turns_for_the_longest():
  program = analysis.Program("step", None, {}, 1, 1, (), 1.0, 0, 0, (1, 1))
  work = analysis.Work({"weights": 30 * CHIP.flops}, {}, traffic.Traffic(39 * CHIP.bandwidth),
                       in_turn.InTurn(30.0, 18.0))
  roofline = analysis.roofline(program, work, CHIP)
  assert (roofline.compute, roofline.memory, roofline.seconds) == (30.0, 39.0, 48.0)
  assert roofline.binds == "compute" and roofline.mfu == pytest.approx(1 / (48 * CHIP.flops))
