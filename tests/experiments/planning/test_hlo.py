"""Collectives and memory traffic of texts with known answers, and of programs compiled for CPUs."""

import collections

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.planning import collectives, hlo, hlo_shapes, traffic
from experiments.planning.collectives import Moved

# As a TPU compiler writes it: a loop of 3 x 2 trips around an asynchronous all-gather, and a loop
# whose end depends on data, around an all-reduce.
LOOPS = """\
HloModule loops, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner_condition (p.1: (s32[], f32[4,8])) -> pred[] {
  %p.1 = (s32[], f32[4,8]{1,0}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  %two = s32[]{:T(128)} constant(2)
  ROOT %lt.1 = pred[]{:T(512)} compare(%i.1, %two), direction=LT
}

%inner_body (p.2: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p.2 = (s32[], f32[4,8]{1,0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%p.2), index=0
  %one.2 = s32[] constant(1)
  %next.2 = s32[] add(%i.2, %one.2)
  %x.2 = f32[4,8]{1,0} get-tuple-element(%p.2), index=1
  %start = (f32[4,8]{1,0}, f32[32,8]{1,0:T(8,128)S(1)}) all-gather-start(%x.2), channel_id=1, \
replica_groups=[1,8]<=[8], dimensions={0}
  %done = f32[32,8]{1,0:T(8,128)S(1)} all-gather-done(%start)
  %slice.2 = f32[4,8]{1,0} slice(%done), slice={[0:4], [0:8]}
  ROOT %t.2 = (s32[], f32[4,8]{1,0}) tuple(%next.2, %slice.2)
}

%outer_condition (p.3: (s32[], f32[4,8])) -> pred[] {
  %p.3 = (s32[], f32[4,8]{1,0}) parameter(0)
  %i.3 = s32[] get-tuple-element(%p.3), index=0
  %seven = s32[] constant(7)
  ROOT %lt.3 = pred[] compare(%seven, %i.3), direction=GT
}

%outer_body (p.4: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p.4 = (s32[], f32[4,8]{1,0}) parameter(0)
  %i.4 = s32[] get-tuple-element(%p.4), index=0
  %step = s32[] constant(2)
  %next.4 = s32[] add(%i.4, %step)
  %zero.4 = s32[] constant(0)
  %x.4 = f32[4,8]{1,0} get-tuple-element(%p.4), index=1
  %state.4 = (s32[], f32[4,8]{1,0}) tuple(%zero.4, %x.4)
  %while.4 = (s32[], f32[4,8]{1,0}) while(%state.4), condition=%inner_condition, body=%inner_body
  %y.4 = f32[4,8]{1,0} get-tuple-element(%while.4), index=1
  ROOT %t.4 = (s32[], f32[4,8]{1,0}) tuple(%next.4, %y.4)
}

%data_condition (p.5: (s32[], f32[4,8])) -> pred[] {
  %p.5 = (s32[], f32[4,8]{1,0}) parameter(0)
  %i.5 = s32[] get-tuple-element(%p.5), index=0
  %nine = s32[] constant(9)
  %lt.5 = pred[] compare(%i.5, %nine), direction=LT
  %ne.5 = pred[] compare(%i.5, %i.5), direction=EQ
  ROOT %and.5 = pred[] and(%lt.5, %ne.5)
}

%data_body (p.6: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p.6 = (s32[], f32[4,8]{1,0}) parameter(0)
  %i.6 = s32[] get-tuple-element(%p.6), index=0
  %x.6 = f32[4,8]{1,0} get-tuple-element(%p.6), index=1
  %reduced = f32[4,8]{1,0} all-reduce(%x.6), channel_id=2, \
replica_groups=mesh['a'=2,'b'=4] {'b'}, to_apply=%add
  ROOT %t.6 = (s32[], f32[4,8]{1,0}) tuple(%i.6, %reduced)
}

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %x = f32[4,8]{1,0} parameter(0)
  %first = s32[] constant(1)
  %state = (s32[], f32[4,8]{1,0}) tuple(%first, %x)
  %while = (s32[], f32[4,8]{1,0}) while(%state), condition=%outer_condition, body=%outer_body
  %while.2 = (s32[], f32[4,8]{1,0}) while(%while), condition=%data_condition, body=%data_body
  ROOT %out = f32[4,8]{1,0} get-tuple-element(%while.2), index=1
}
"""

# A stack of layers of which fusions read one and write one, and a fused reduce-scatter.
FUSIONS = """\
HloModule fusions

%take (p0: bf16[36,100], p1: s32[]) -> f32[100] {
  %p0 = bf16[36,100]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %bits = bf16[36,100]{1,0} bitcast(%p0)
  %one = bf16[1,100]{1,0} dynamic-slice(%bits, %p1, %zero), dynamic_slice_sizes={1,100}
  %flat = bf16[100]{0} bitcast(%one)
  ROOT %wide = f32[100]{0} convert(%flat)
}

%put (q0: bf16[36,100], q1: s32[], q2: f32[100]) -> bf16[36,100] {
  %q0 = bf16[36,100]{1,0} parameter(0)
  %q1 = s32[] parameter(1)
  %q2 = f32[100]{0} parameter(2)
  %zero.1 = s32[] constant(0)
  %narrow = bf16[100]{0} convert(%q2)
  %row = bf16[1,100]{1,0} bitcast(%narrow)
  ROOT %new = bf16[36,100]{1,0} dynamic-update-slice(%q0, %row, %q1, %zero.1)
}

%all-reduce-scatter (r0: f32[800]) -> f32[100] {
  %r0 = f32[800]{0} parameter(0)
  %sum = f32[800]{0} all-reduce(%r0), channel_id=3, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%a
  %at = s32[] constant(0)
  ROOT %part = f32[100]{0} dynamic-slice(%sum, %at), dynamic_slice_sizes={100}
}

ENTRY %main (stack: bf16[36,100], at: s32[], g: f32[800]) -> bf16[36,100] {
  %stack = bf16[36,100]{1,0} parameter(0)
  %at.1 = s32[] parameter(1)
  %g = f32[800]{0} parameter(2)
  %f = f32[100]{0} fusion(%stack, %at.1), kind=kLoop, calls=%take
  %s = f32[100]{0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter
  %sum.1 = f32[100]{0} add(%f, %s)
  ROOT %out = bf16[36,100]{1,0} fusion(%stack, %at.1, %sum.1), kind=kLoop, calls=%put
}
"""


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


def test_a_counter_that_ignores_trips_is_rejected():
  assert moved(LOOPS, trips=False)[0]["all-gather"].count != 6


def test_the_compilers_own_trip_count_comes_first():
  text = LOOPS.replace("condition=%data_condition, body=%data_body",
                       "condition=%data_condition, body=%data_body, "
                       'backend_config={"known_trip_count":{"n":"5"}}')
  (outside,) = moved(text)
  assert outside["all-reduce"].count == 5


def test_buffers_on_the_chip_are_told_apart():
  found = passed(LOOPS)
  assert found["%done"] == traffic.Traffic(0, 6 * 1024)  # written there
  assert found["%start"] == traffic.Traffic(6 * 128, 0)
  assert found["%slice.2"] == traffic.Traffic(6 * 128, 6 * 128)  # reads its slice alone
  assert passed(LOOPS, chip=False)["%done"] == traffic.Traffic(6 * 1024, 0)
  assert found["%while"] == found["%state"] == traffic.Traffic()


def test_a_started_slice_reads_what_it_moves():
  """A TPU compiler brings parts of a weight onto the chip ahead of the product that reads them."""
  found = passed("""\
HloModule prefetch

ENTRY %main (w: bf16[64,100]) -> bf16[8,100] {
  %w = bf16[64,100]{1,0} parameter(0)
  %begin = (bf16[64,100]{1,0}, bf16[8,100]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%w), \
slice={[0:8], [0:100]}
  ROOT %part = bf16[8,100]{1,0:S(1)} slice-done(%begin)
}
""")
  assert found["%begin"] == traffic.Traffic(1600, 0)
  assert found["%part"] == traffic.Traffic(0, 1600)


def test_a_fusion_reads_and_writes_the_slice_of_a_stack():
  found = passed(FUSIONS)
  assert found["%f"].memory == 200 + 4 + 400  # one of 36 layers, the index, the output
  assert found["%out"].memory == 4 + 400 + 200
  assert found["%sum.1"].memory == 3 * 400


def test_a_nested_fusion_that_only_renames_its_operand_is_read_by_its_users():
  """A TPU compiler puts weights and caches that enter a product into such a fusion."""
  found = passed("""\
HloModule nested

%rename (n0: s8[64,100]) -> s8[64,100] {
  %n0 = s8[64,100]{1,0:T(32,128)(4,1)} parameter(0)
  ROOT %b = s8[64,100]{1,0:T(8,128)(4,1)} bitcast(%n0)
}

%multiply (m0: s8[64,100], m1: bf16[32,64]) -> bf16[32,100] {
  %m0 = s8[64,100]{1,0} parameter(0)
  %m1 = bf16[32,64]{1,0} parameter(1)
  %renamed = s8[64,100]{1,0} fusion(%m0), kind=kLoop, calls=%rename
  ROOT %c = bf16[32,100]{1,0} convolution(%m1, %renamed), dim_labels=bf_io->bf
}

ENTRY %main (w: s8[64,100], x: bf16[32,64]) -> bf16[32,100] {
  %w = s8[64,100]{1,0} parameter(0)
  %x = bf16[32,64]{1,0} parameter(1)
  %copied = s8[64,100]{1,0} fusion(%w), kind=kLoop, calls=%rename
  ROOT %y = bf16[32,100]{1,0} fusion(%copied, %x), kind=kOutput, calls=%multiply
}
""")
  assert found["%y"].memory == 64 * 100 + 2 * 32 * 64 + 2 * 32 * 100
  assert found["%copied"].memory == 2 * 64 * 100


def test_a_librarys_workspace_is_no_traffic():
  call = ('  %s = (f32[100]{0}, s8[33554432]{0}) custom-call(%g), '
          'custom_call_target="__cublas$lt$matmul"')
  before = '  %s = f32[100]{0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter'
  assert before in FUSIONS
  assert passed(FUSIONS.replace(before, call))["%s"].memory == 3200 + 400
  other = call.replace("__cublas$lt$matmul", "tpu_custom_call")
  assert passed(FUSIONS.replace(before, other))["%s"].memory == 3200 + 400 + 33554432


def test_a_buffer_that_is_only_allocated_is_no_traffic():
  before = '  %s = f32[100]{0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter'
  call = '  %s = f32[100]{0} custom-call(), custom_call_target="AllocateBuffer"'
  assert passed(FUSIONS.replace(before, call))["%s"] == traffic.Traffic()
  other = call.replace("AllocateBuffer", "tpu_custom_call")
  assert passed(FUSIONS.replace(before, other))["%s"].memory == 400


def test_a_fused_slice_of_an_all_reduce_is_a_reduce_scatter():
  assert moved(FUSIONS) == [{"reduce-scatter": Moved(1, 400, 7 * 400)}]


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
