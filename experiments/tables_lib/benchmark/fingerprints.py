"""Digests that tell whether samples belong to these parameters and these problems."""

import concurrent.futures
import hashlib
import json

import jax
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.types import Params, Problem, Task

DIGITS = 16  # of a digest, hexadecimal
PIECE = 2**25  # bytes that one thread digests at a time


def params_digest(params: Params) -> str:
  """Returns the digest of parameters: paths, shapes, dtypes and bytes, on any number of devices the
  same.

  One leaf after the other is copied to the host, where threads digest its pieces: SHA-256 releases
  Python's lock, so that with several cores memory sets the speed.
  """
  total = hashlib.sha256()
  with concurrent.futures.ThreadPoolExecutor() as threads:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
      total.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype} ".encode())
      content = np.ascontiguousarray(parallel.gather_host(leaf)).reshape(-1).view(np.uint8)
      pieces = [content[start:start + PIECE] for start in range(0, len(content), PIECE)]
      for piece_digest in threads.map(_digest, pieces):
        total.update(piece_digest)
  return total.hexdigest()[:DIGITS]


def _digest(piece: np.ndarray) -> bytes:
  return hashlib.sha256(piece.data).digest()


def problems_digest(task: Task, problems: list[Problem]) -> str:
  """Returns the digest of problems: ids, texts, answers, and prompts as the task renders them now.
  """
  total = hashlib.sha256()
  for problem in problems:
    content = [problem.id, problem.prompt, problem.answer, [int(i) for i in task.render(problem)]]
    total.update(json.dumps(content, default=str).encode() + b"\n")
  return total.hexdigest()[:DIGITS]
