"""Collectives and memory traffic of texts with known answers, and of programs compiled for CPUs."""

import collections
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.planning import collectives, hlo, hlo_shapes, traffic
from experiments.planning.collectives import Moved

HERE = Path(__file__).parent

# As a TPU compiler writes it: a loop of 3 x 2 trips around an asynchronous all-gather, and a loop
# whose end depends on data, around an all-reduce.
LOOPS = (HERE / "loops.hlo").read_text()

# A stack of layers of which fusions read one and write one, and a fused reduce-scatter.
FUSIONS = (HERE / "fusions.hlo").read_text()


def moved(text: str, devices: int = 8, trips: bool = True):
  """Collectives outside loops of unknown trips, and inside; `trips=False` is a wrong counter."""
  module = hlo.parse(text)
  visits, loops, _ = module.visits()
  sums = [collections.defaultdict(Moved) for _ in range(loops + 1)]
  for visit in visits:
    visit = visit if trips else hlo.Visit(visit.instruction, visit.computation, 1.0, visit.loop)
    at = 0 if visit.loop is None else visit.loop + 1
    collectives.add(sums[at], collectives.visit_collectives(module, visit, devices))
  return [dict(s) for s in sums]


def passed(text: str, chip: bool = True) -> dict[str, traffic.Traffic]:
  module = hlo.parse(text)
  visits, _, _ = module.visits()
  return {visit.instruction.name: traffic.visit_traffic(module, visit, chip) for visit in visits}


def test_nested_trips_and_asynchronous_pairs():
  outside, inside = moved(LOOPS)
  gathered = 3 * 2 * 32 * 8 * 4  # from 1 to below 7 by 2, times 2
  assert outside == {"all-gather": Moved(6, gathered, gathered * 7 / 8)}
  assert inside == {"all-reduce": Moved(1, 128, 2 * 128 * 3 / 4)}  # of one trip, in a group of 4
  assert moved(LOOPS, trips=False)[0]["all-gather"].count != 6


def test_the_compilers_own_trip_count_comes_first():
  text = LOOPS.replace("condition=%data_condition, body=%data_body",
                       "condition=%data_condition, body=%data_body, "
                       'backend_config={"known_trip_count":{"n":"5"}}')
  (outside,) = moved(text)
  assert outside["all-reduce"].count == 5


def test_buffers_on_the_chip_are_told_apart():
  by_name = passed(LOOPS)
  assert by_name["%done"] == traffic.Traffic(0, 6 * 1024)  # written there
  assert by_name["%start"] == traffic.Traffic(6 * 128, 0)
  assert by_name["%slice.2"] == traffic.Traffic(6 * 128, 6 * 128)  # reads its slice alone
  assert passed(LOOPS, chip=False)["%done"] == traffic.Traffic(6 * 1024, 0)
  assert by_name["%while"] == by_name["%state"] == traffic.Traffic()


def test_a_fusion_reads_and_writes_the_slice_of_a_stack():
  by_name = passed(FUSIONS)
  assert by_name["%f"].memory == 200 + 4 + 400  # one of 36 layers, the index, the output
  assert by_name["%out"].memory == 4 + 400 + 200
  assert by_name["%sum.1"].memory == 3 * 400


def test_a_nested_fusion_that_only_renames_its_operand_is_read_by_its_users():
  """A TPU compiler puts weights and caches that enter a product into such a fusion."""
  by_name = passed((HERE / "nested.hlo").read_text())
  assert by_name["%y"].memory == 64 * 100 + 2 * 32 * 64 + 2 * 32 * 100
  assert by_name["%copied"].memory == 2 * 64 * 100


def test_a_fused_slice_of_an_all_reduce_is_a_reduce_scatter():
  assert moved(FUSIONS) == [{"reduce-scatter": Moved(1, 400, 7 * 400)}]


def test_a_collective_carried_through_fusions_is_one():
  """Each fusion of its chain has it inside; a counter that looks at fusions alone sees several."""
  text = (HERE / "chain.hlo").read_text()
  part, full, product = 4 * 8 * 16, 4 * 8 * 64, 4 * 32 * 32
  assert moved(text) == [{"all-gather": Moved(1, full, full * 3 / 4)}]
  by_name = {name: by.memory for name, by in passed(text).items()}
  assert (by_name["%begin"], by_name["%step"], by_name["%end"]) == (part, 2 * product, full)
  renamed = text.replace("custom-call(%e0, %e1, %e.gather, %e2)",
                         "custom-call(%e0, %e1, %e.same, %e2)").replace(
      "  ROOT %e.root", "  %e.same = f32[8,64]{1,0} bitcast(%e.gather)\n  ROOT %e.root")
  assert renamed != text and moved(renamed) == moved(text)
  wrong = text.replace("chain_id", "other_id")
  assert moved(wrong)[0]["all-gather"].count == 3
  assert passed(wrong)["%step"].memory > 2 * product + full


@pytest.mark.parametrize("text, sizes", [
    ("f32[8,2]{1,0}", [64]),
    ("(bf16[3]{0:T(8,128)(2,1)S(1)}, s32[], /*index=2*/pred[5]{0})", [6, 4, 5]),
    ("s4[3]", [2]),
    ("f8e4m3fn[7]", [7]),
    ("token[]", [0]),
])
def test_sizes_of_shapes(text, sizes):
  assert [buffer.size for buffer in hlo_shapes.buffers(text)] == sizes


def test_a_program_compiled_for_eight_devices():
  mesh = Mesh(jax.devices(), "data")
  rows = NamedSharding(mesh, PartitionSpec("data"))

  def f(x):
    return lax.scan(lambda y, _: (y * jnp.mean(y, 0), None), x, None, length=5)[0]

  shape = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=rows)
  text = jax.jit(f, out_shardings=rows).trace(shape).lower().compile().as_text()
  (outside,) = moved(text)
  assert outside == {"all-reduce": Moved(5, 5 * 128, 5 * 2 * 128 * 7 / 8)}
