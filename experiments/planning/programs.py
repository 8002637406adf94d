"""The programs of an iteration, as a run makes them, with abstract arguments."""

import jax
import numpy as np

from experiments.planning import kernels, lengths, model_flops
from experiments.planning.abstract import Planned, bytes_of, placed
from experiments.planning.analysis import Program, tracing
from experiments.planning.sampler_programs import sampler_params, sampler_programs
from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError
from jaxrl_llm.objective import estimators
from jaxrl_llm.training import transforms
from jaxrl_llm.training.columns import REFERENCE
from jaxrl_llm.training.packing import Packing, Prompts


def iteration_programs(planned: Planned, names: tuple[str, ...] = (),
                       mean_length: float = 1.0) -> list[Program]:
  """Returns the programs of an iteration in the order in which they run.

  Args:
    names: of the wanted programs; empty: all.
    mean_length: of completions, over their limit (`lengths.shares`).

  Raises:
    ConfigError: a name that this config has no program for.
  """
  resident = _start_bytes(planned) + bytes_of(planned.state)
  programs = [*sampler_programs(planned, resident, mean_length), *_scoring(planned, mean_length),
              _step(planned, mean_length)]
  by_name = {program.name: program for program in programs}
  unknown = [name for name in names if name not in by_name]
  if unknown:
    raise ConfigError(f"--programs={','.join(names)}: this config has no program "
                      f"{unknown[0]!r}. Allowed are {', '.join(by_name)}. "
                      f"Fix: --programs={next(iter(by_name))}.")
  return [program for program in programs if not names or program.name in names]


def _step(planned: Planned, mean_length: float) -> Program:
  state, learner = planned.state, planned.learner
  updates, model = learner.updates, learner.model.config
  parameters = (state.params, state.frozen)
  rows = planned.sizes.rows // updates.optimizer_batches
  packing, trips, tokens, live = _packed(planned, rows, mean_length)
  resident = _start_bytes(planned) + (updates.optimizer_batches - 1) * bytes_of(planned.batch)
  # Some estimators and some update transforms go over the full batch first.
  weighs = estimators.spec(learner.cfg.loss.estimator.name).batch_statistics
  passes = 1 + weighs + sum(x.passes for x in transforms.active(learner.cfg).values())
  return Program(
      "step", tracing(learner.step, state, planned.batch, packing),
      {"parameters": parameters, "optimizer": (state.opt_state, state.step), "cache": (),
       "batch": planned.batch},
      learner.mesh.size, updates.optimizer_batches, trips * passes,
      tokens * model_flops.update(model, planned.sizes, rows,
                                  adapters=learner.cfg.parameters.train == "lora"),
      resident, 0, planned.head, live=live)


def _scoring(planned: Planned, mean_length: float) -> list[Program]:
  """Returns the anchor's pass and the columns' passes, where the config needs them."""
  scoring, scorers = planned.learner.scoring, []
  work = (planned.learner.model.config, planned.sizes, planned.sizes.rows)
  if scoring.runs_pass:
    scorers.append(("score", scoring.score))
  resident = _start_bytes(planned) + bytes_of(planned.state.opt_state)
  if not parallel.apart(planned.rollout_mesh, planned.learner.mesh):
    resident += bytes_of(sampler_params(planned))  # scores are dispatched while the copy is there
  arguments = (planned.params, planned.rollout, planned.sampling)
  packing, trips, tokens, live = _packed(planned, planned.sizes.rows, mean_length)
  ahead = model_flops.ahead(*work) if "mtp_log_probs" in scoring.stats else 0
  entries = [(name, tracing(program, *arguments, packing=packing), 1) for name, program in scorers]
  for column in scoring.columns.values():
    policies = [planned.params] * len(column.entry.reads)
    traced = tracing(column.run, *policies, planned.rollout, planned.sampling, packing=packing)
    entries.append((column.entry.program, traced, len(policies)))
  return [
      Program(name, traced,
              {"parameters": planned.params, "optimizer": (), "cache": (),
               "batch": planned.rollout},
              planned.learner.mesh.size, 1, trips,
              tokens * (passes * model_flops.forward(*work) + (ahead if name == "score" else 0)),
              resident, 0, planned.head, live=live)
      for name, traced, passes in entries
  ]


def _packed(planned: Planned, rows: int,
            mean_length: float) -> tuple[Packing | None, tuple[int, ...], float, float]:
  """Returns (the packing of so many rows, the most trips of its loop, the share of the rows' room
  that has tokens, the share of pairs that attention computes); the first two are (None, ()) without
  one, and the last one is 1. Prompts have their longest.
  """
  packer = planned.learner.packer
  share = lengths.shares(rows, mean_length)
  tokens = planned.sizes.max_prompt_tokens + np.round(share * planned.sizes.max_new_tokens)
  used = float(tokens.sum() / (rows * planned.sizes.row_length))
  if packer is None:
    return None, (), used, 1.0
  replicated = parallel.replicated(planned.learner.mesh)
  abstract = packer.abstract(rows)
  # The most tokens that rows may have; prompts differ between groups.
  cfg, size = planned.sizes, planned.sizes.group_size
  prompts = Prompts(np.repeat(np.arange(rows // size), size)[:, None],
                    np.full(rows, cfg.max_prompt_tokens))
  plan, of_rows = packer(tokens.astype(np.int64), prompts), np.append(tokens, 0).astype(np.int64)
  bins = of_rows[plan.rows].reshape(-1, packer.bins.rows)
  alone = packer.per_device == 1 and not packer.shared_prompts  # with others nothing is skipped
  live = kernels.live_pairs(bins[bins.any(1)], packer.bins.capacity) if alone else 1.0
  return (placed(abstract, jax.tree.map(lambda _: replicated, abstract)), (int(plan.count),), used,
          live)


def _start_bytes(planned: Planned) -> int:
  """Returns bytes of the starting parameters, where they are the KL reference, and of older copies
  that sample.
  """
  reference = planned.learner.scoring.reads(REFERENCE)
  return (reference + planned.learner.updates.staleness) * bytes_of(planned.state.params)
