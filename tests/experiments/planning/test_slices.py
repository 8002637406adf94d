"""Two slices of TPUs: what goes across the network between them, and how often."""

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import planned_config
import pytest

from experiments.planning import abstract, collectives, hlo, lengths, programs
from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, MeshConfig
from jaxrl_llm.parallel import meshes

HERE = Path(__file__).parent


def devices(slices: int, platform: str = "tpu") -> list:
  return [SimpleNamespace(platform=platform, slice_index=number // 8, process_index=0)
          for number in range(8 * slices)]


@pytest.mark.parametrize("cfg", [MeshConfig(fsdp=16), MeshConfig(data=1, fsdp=8, tensor=2)])
def test_only_data_goes_across_slices(cfg):
  with pytest.raises(ConfigError, match=r"mesh.data = 1 with 2 slices of 8 devices: .*mesh.fsdp=8"):
    parallel.make_mesh(cfg, devices(2))


def test_devices_that_share_rows_are_of_one_host():
  """On 4 x 4 chips by rows, with hosts of 2 x 2, four neighbours are of two hosts."""
  chips = np.empty(16, object)
  chips[:] = [SimpleNamespace(platform="tpu", process_index=2 * (x // 2) + y // 2, name=(x, y))
              for x in range(4) for y in range(4)]
  by_network = chips.reshape(1, 4, 1, 4)
  hosts = [[chip.process_index for chip in group[0]]
           for group in meshes.rows_in_processes(by_network)[0]]
  assert hosts == [[host] * 4 for host in range(4)]
  assert len({chip.name for chip in meshes.rows_in_processes(by_network).flat}) == 16
  assert [chip.process_index for chip in by_network[0, 0, 0]] == [0, 0, 1, 1]
  for shape in ((1, 8, 1, 2), (1, 1, 2, 8)):  # they are; they cannot be
    grid = chips.reshape(shape)
    assert meshes.rows_in_processes(grid) is grid


TEXT = (HERE / "two_slices.hlo").read_text()


def test_bytes_across_are_those_of_groups_in_several_slices():
  module = hlo.parse(TEXT)
  across = {}
  for visit in module.visits()[0]:
    for _, moved in collectives.visit_collectives(module, visit, 16, slices=2):
      across[visit.instruction.name.lstrip("%")] = moved.across
  # An all-reduce over two slices sends its bytes once; over all 16 devices, an eighth of them, as
  # each device has summed its part inside its slice before.
  assert across == {"inside": 0.0, "across": 400.0, "both": 50.0, "listed": 0.0, "sent": 400.0}


# A reduction of 64 x 128 numbers over two slices of four v5p chips, as libtpu 0.0.42 writes it: in
# a slice first; then each device sends the part that it has reduced.
TPU_TEXT = (HERE / "host_transfers.hlo").read_text()


def test_what_a_tpu_sends_through_its_host_goes_across():
  module = hlo.parse(TPU_TEXT)
  moves = [move for visit in module.visits()[0]
           for move in collectives.visit_collectives(module, visit, 8, slices=2)]
  part = 4 * 16 * 128
  assert [(kind, moved.across) for kind, moved in moves] == [("reduce-scatter", 0.0),
                                                             ("all-reduce", part)]
  assert moves[0][1].wire == 3 * part and moves[1][1].wire == 0.0


@pytest.mark.parametrize("mean", [0.2, 0.4, 0.9])
def test_lengths_have_their_mean(mean):
  shares = lengths.shares(4096, mean)
  assert abs(shares.mean() - mean) < 1e-3 and shares.max() <= 1.0 and (np.diff(shares) >= 0).all()


def test_a_slot_is_in_flight_longest_with_its_longest_rows():
  sizes = np.round(lengths.shares(64, 0.4) * 500)
  behind = np.concatenate([np.arange(1, n + 1) for n in sizes])  # tokens of each step of each row
  assert lengths.in_flight(64, 0.4) * 500 == pytest.approx(behind.mean(), rel=0.01)
  assert lengths.in_flight(64, 1.0) == 0.5 and lengths.in_flight(64, 0.4) > 0.4 / 2  # not half


def test_short_rows_need_fewer_micro_batches_and_steps():
  cfg = planned_config.ready(updates=dict(micro_batches=1, token_budget=64),
                             rollout=dict(slots=8, chunk=4, prompts=32, max_prompt_tokens=4,
                                          max_new_tokens=28))
  planned = abstract.plan(cfg, jax.devices()[:4])
  full, short = (
      {program.name: program for program in programs.iteration_programs(planned, (), mean)}
      for mean in (1.0, 0.3))
  assert short["decode"].runs < full["decode"].runs
  assert short["step"].trips < full["step"].trips
  assert short["step"].model_flops < full["step"].model_flops
