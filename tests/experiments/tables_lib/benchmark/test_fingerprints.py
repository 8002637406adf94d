"""Digests differ where parameters or problems do, and nowhere else."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.tables_lib.benchmark import fingerprints
from jaxrl_llm.types import Problem

TREE = {"a": jnp.arange(12.0).reshape(4, 3), "b": jnp.arange(5, dtype=jnp.bfloat16)}


def test_devices_and_pieces_do_not_matter(monkeypatch):
  """The pieces are joined in order: with threads that finish in another one, too."""
  mesh = Mesh(np.array(jax.devices()[:4]), "x")
  spread = {**TREE, "a": jax.device_put(TREE["a"], NamedSharding(mesh, PartitionSpec("x")))}
  assert fingerprints.params_digest(spread) == fingerprints.params_digest(TREE)
  assert fingerprints.params_digest(jax.device_get(TREE)) == fingerprints.params_digest(TREE)


@pytest.mark.parametrize("piece", [2**25, 16])
@pytest.mark.parametrize("changed", [
    {**TREE, "a": TREE["a"].at[3, 2].add(1e-5)}, {**TREE, "a": TREE["a"].reshape(3, 4)},
    {**TREE, "b": TREE["b"][::-1]}, {**TREE, "b": TREE["b"].astype(jnp.float16)},
    {"a": TREE["a"], "c": TREE["b"]}, {"a": TREE["a"]},
    {**TREE, "a": TREE["a"][jnp.array([0, 2, 1, 3])]},
], ids=["value", "shape", "order", "dtype", "name", "leaf", "rows"])
def test_a_change_changes_the_digest(changed, piece, monkeypatch):
  monkeypatch.setattr(fingerprints, "PIECE", piece)
  assert fingerprints.params_digest(changed) != fingerprints.params_digest(TREE)


def test_a_digest_of_names_and_shapes_would_miss_them():
  shapes = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)
  assert shapes({**TREE, "a": TREE["a"] + 1}) == shapes(TREE)


def test_problems():
  task = types.SimpleNamespace(render=lambda problem: [len(problem.prompt)])
  problems = [Problem("1+1", "2", id="a"), Problem("1+2", "3", id="b")]
  digest = fingerprints.problems_digest(task, problems)
  assert digest == fingerprints.problems_digest(task, list(problems))
  other = types.SimpleNamespace(render=lambda problem: [0, len(problem.prompt)])
  changes = [fingerprints.problems_digest(other, problems),
             fingerprints.problems_digest(task, problems[:1]),
             fingerprints.problems_digest(task, problems[::-1])]
  edited = [dataclasses.replace(problems[1], **x)
            for x in ({"answer": "4"}, {"prompt": "1+3"}, {"id": "c"})]
  changes += [fingerprints.problems_digest(task, [problems[0], problem]) for problem in edited]
  assert len({digest, *changes}) == len(changes) + 1
