"""A separate engine for each device, so that no device waits for another's rows."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl_llm import parallel
from jaxrl_llm.models import Model
from jaxrl_llm.rollouts import engine, hand_over
from jaxrl_llm.rollouts.rollout_table import Stats
from jaxrl_llm.rollouts.sizes import EngineConfig
from jaxrl_llm.types import PromptBatch, Rollout, Sampling


def run(params, prompts: PromptBatch, key: jax.Array, sampling: Sampling, *, model: Model,
        cfg: EngineConfig, mesh: Mesh, max_new=None, **turns) -> tuple[Rollout, Stats]:
  """Samples what `engine.run` samples. Groups are divided over the engines, in order; none is
  split.

  Devices that share the heads of a row (the mesh's axis `tensor`) share an engine. Each engine has
  a thread, which compiles its programs and launches them on its devices only.

  Args:
    params: of `model`, on the devices of `mesh`.
    cfg: `slots` counts the slots of all engines together. With `shared_prefix`, an engine must have
      one device.
    mesh: of all devices.
    max_new: [B] int or None, as in `engine.run`.
    **turns: the environment and its settings, as in `engine.run`. All engines ask the same
      environment. `tool_workers` are divided among them, at least one for each.

  Returns:
    as `engine.run`; the counts of all engines are added.

  Raises:
    as `engine.run`: what the first engine in order raises, after all have ended.
  """
  meshes = parallel.per_engine(mesh)
  cfg = dataclasses.replace(cfg, slots=-(-cfg.slots // len(meshes)))
  if "tool_workers" in turns:
    turns["tool_workers"] = -(-turns["tool_workers"] // len(meshes))
  params, host = hand_over.make(model, mesh)(params), jax.device_get(prompts)

  def run_engine(mesh: Mesh, rows: np.ndarray) -> tuple[Rollout, Stats]:
    part = jax.tree.map(lambda x: x[rows], host)
    rollout, stats = engine.run(
        parallel.held_by(params, mesh), part,
        *parallel.transfer((key, sampling), parallel.replicated(mesh)),
        model=dataclasses.replace(model, constrain=parallel.Layout(mesh)), cfg=cfg, mesh=mesh,
        max_new=None if max_new is None else np.asarray(max_new)[rows], **turns)
    return parallel.gather_host(rollout), stats

  groups = np.arange(len(host.row_id)).reshape(-1, cfg.group_size)
  parts = [part.ravel() for part in np.array_split(groups, len(meshes)) if len(part)]
  with ThreadPoolExecutor(len(parts), thread_name_prefix="engine") as threads:
    rollouts, stats = zip(*threads.map(run_engine, meshes, parts), strict=True)
  merged = jax.tree.map(lambda *rows: np.concatenate(rows), *rollouts)
  counts = zip(*map(dataclasses.astuple, stats), strict=True)
  return parallel.to_global(merged, mesh), Stats(*map(sum, counts))
