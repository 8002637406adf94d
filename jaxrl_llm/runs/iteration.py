"""One iteration: draw, score, shape, weigh, update; and the state that goes from one to the next.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_llm import parallel
from jaxrl_llm.models import trainable
from jaxrl_llm.rollouts import engine
from jaxrl_llm.runs import collect, setup
from jaxrl_llm.runs.checkpoints import abstract
from jaxrl_llm.runs.draw import draw, shaped
from jaxrl_llm.runs.overlap import Ahead
from jaxrl_llm.training import pipo
from jaxrl_llm.training.pipo import PipoState
from jaxrl_llm.training.score import Scores
from jaxrl_llm.training.train_step import init_state, state_shardings
from jaxrl_llm.types import PromptBatch, TokenStats, TrainState


@dataclasses.dataclass(frozen=True)
class Run:
  """Everything that the next iteration depends on.

  Attributes:
    state: trained parameters and optimizer.
    cursor: batches of the task drawn so far; the next one's index, and the source of row ids.
    pipo: the batch and mean rewards that PIPO keeps, or None.
    stale: `updates.staleness` copies of step and trained parameters before earlier updates, the
      oldest first.
  """

  state: TrainState
  cursor: int
  pipo: PipoState | None
  stale: tuple[TrainState, ...] = ()

  def saved(self) -> dict:
    """What a checkpoint holds; the frozen parameters are those of the start."""
    tree = {"train": self.state.replace(frozen=None), "cursor": np.asarray(self.cursor, np.int32)}
    tree |= {"stale": list(self.stale)} if self.stale else {}
    return tree if self.pipo is None else tree | {"pipo": self.pipo}


def first_run(parts: setup.Parts, start) -> Run:
  """Before the first iteration. `start` stays the caller's: what is trained is copied, what is
  frozen shared.
  """
  cfg = parts.cfg
  shardings = state_shardings(parts.model, parts.tx, parts.mesh,
                              cfg.parameters).replace(frozen=None)
  init = jax.jit(lambda t: init_state(jax.tree.map(jnp.copy, t), parts.tx), out_shardings=shardings)
  kept = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding),
                      _abstract_pipo(parts))
  state = init(start.params)
  stale = tuple(_snapshot(state) for _ in range(cfg.updates.staleness))
  return Run(state.replace(frozen=start.frozen), 1, kept, stale)


def _snapshot(state: TrainState) -> TrainState:
  """Step and trained parameters in arrays of their own: an update donates the state's."""
  return jax.tree.map(jnp.copy, TrainState(state.step, state.params, None))


def restored(tree: dict, start) -> Run:
  """The run that `saved` wrote; frozen parameters are taken from the start."""
  return Run(tree["train"].replace(frozen=start.frozen), int(tree["cursor"]), tree.get("pipo"),
             tuple(tree.get("stale", ())))


def abstract_saved(parts: setup.Parts) -> dict:
  """Shapes, dtypes and shardings of `Run.saved`."""
  shardings = state_shardings(parts.model, parts.tx, parts.mesh,
                              parts.cfg.parameters).replace(frozen=None)
  trained, _ = trainable.shapes_of(parts.model, parts.cfg.parameters)
  shapes = jax.eval_shape(lambda t: init_state(t, parts.tx), trained)
  train = abstract(shapes, shardings)
  tree = {"train": train, "cursor": np.asarray(0, np.int32)}
  if parts.cfg.updates.staleness:
    tree["stale"] = [train.replace(opt_state=None)] * parts.cfg.updates.staleness
  kept = _abstract_pipo(parts)
  return tree if kept is None else tree | {"pipo": kept}


def _abstract_pipo(parts: setup.Parts) -> PipoState | None:
  """Shapes of what PIPO keeps: those that the run's own functions would give."""
  cfg = parts.cfg
  if not cfg.pipo.enabled:
    return None
  struct = lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype)
  per_row = struct((cfg.rows,), jnp.int32)
  prompts = PromptBatch(struct((cfg.rows, cfg.rollout.max_prompt_tokens), jnp.int32), per_row,
                        per_row, per_row)
  params = jax.eval_shape(parts.model.init, jax.random.key(0))
  rollout = engine.rollout_shape(prompts,
                                 engine.EngineConfig(max_new_tokens=cfg.rollout.max_new_tokens),
                                 turns=cfg.rollout.max_turns > 0)
  scores = jax.eval_shape(functools.partial(_score, parts), params, params, rollout)
  batch = jax.eval_shape(parts.replayed, rollout, struct((cfg.rows,), jnp.float32),
                         struct((cfg.rows,), bool), scores)
  rows, whole = parallel.rows(parts.mesh), parallel.replicated(parts.mesh)
  placed = lambda tree, at: jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), tree)
  return PipoState(placed(struct((cfg.pipo.history,), jnp.float32), whole),
                   placed(struct((), jnp.int32), whole), placed(batch, rows))


def iterate(parts: setup.Parts, run: Run, ref_params, iteration: int, ahead: Ahead | None = None):
  """One rollout batch and its updates: (run, metrics of each step on the device, host values,
  rollout rows).

  Args:
    ahead: draws the next batch meanwhile, unless this is the last iteration (needs
      `updates.staleness`); None: nothing does.
  """
  cfg, state = parts.cfg, run.state
  params = parts.merged(state)
  stale = (*run.stale, _snapshot(state)) if run.stale else ()
  sampler = run.stale[0].replace(frozen=state.frozen) if run.stale else state
  sampler_params = parts.merged(sampler) if run.stale else params
  scores = []
  take = draw if ahead is None else ahead.draw
  drawn = take(
      parts, sampler_params, sampler.step, run.cursor,
      lambda rollout: scores.append(_score(parts, params, ref_params, rollout, own=not run.stale)))
  if ahead is not None and iteration < cfg.iterations:
    following = stale[1].replace(frozen=state.frozen)  # what the next iteration will find in front
    ahead.begin(parts, parts.merged(following), following.step, drawn.cursor)
  scored = scores[0] if scores else _score(parts, params, ref_params, drawn.rollout,
                                           own=not run.stale)
  values = drawn.metrics | collect.host_metrics(drawn.verdicts, drawn.host, cfg.rollout.group_size)
  rewards, keep = shaped(drawn.verdicts, drawn.host, cfg.shaping, cfg.rollout.max_new_tokens)
  if cfg.task.shuffle_rewards:
    rewards, keep = collect.shuffled(rewards, keep, cfg.seed, iteration)
  values |= {"rollout/staleness": float(run.state.step) - float(np.mean(drawn.host.policy_step)),
             "reward/shaped": float(np.mean(rewards[keep])) if keep.any() else float("nan"),
             "reward/kept": float(np.mean(keep))}
  on_device = parallel.to_global((rewards, keep), parts.mesh)
  batches, correction = parts.batches(drawn.rollout, *on_device, scored)
  if parts.meter is not None and scored.own is None:
    correction |= parts.meter(sampler_params, drawn.rollout, parts.scoring)
  anchor = None if scored.anchor_log_probs is None else parallel.gather_host(
      scored.anchor_log_probs)
  rows = collect.rollout_rows(drawn.problems, drawn.verdicts, drawn.host, anchor, rewards, keep)
  first_step = values["step"] = (iteration - 1) * cfg.updates.optimizer_batches
  state, replayed, kept, xi = _replay(parts, run, drawn.rollout, on_device, scored,
                                      values["reward/mean"])
  steps = []
  for batch in batches:
    state, metrics = parts.step(state, batch)
    steps.append(metrics)
  values |= xi | {"step": first_step + len(steps)}
  return Run(state, drawn.cursor, kept, stale[1:]), (steps, correction, replayed), values, rows


def _replay(parts: setup.Parts, run: Run, rollout, on_device, scored: Scores, fresh: float):
  """PIPO's step on the previous batch: (state, its metrics or None, what to keep, host values)."""
  cfg = parts.cfg.pipo
  if not cfg.enabled:
    return run.state, None, None, {}
  state, metrics, values = run.state, None, {}
  found = pipo.progress(np.asarray(run.pipo.means), int(run.pipo.count), fresh, cfg)
  if found is not None:
    xi, weight = found
    previous = run.pipo.batch.replace(advantages=weight * run.pipo.batch.advantages)
    state, metrics = parts.replay_step(state, previous)
    values = {"pipo/xi": xi, "pipo/weight": weight}
  kept = pipo.remember(run.pipo, parts.replayed(rollout, *on_device, scored), fresh)
  return state, metrics, kept, values


def _score(parts: setup.Parts, params, ref_params, rollout, *, own: bool = False) -> Scores:
  """The passes over a rollout, each skipped where nothing reads it; `own`: `params` sampled it."""
  cfg = parts.cfg
  wanted = setup.scored_stats(cfg)
  behavior = cfg.updates.anchor == "behavior"
  # With one optimizer batch the current policy is the anchor: its own detached log-probs serve,
  # without a pass.
  skipped = cfg.updates.optimizer_batches == 1 and not (cfg.correction.level != "none" or
                                                        cfg.correction.reject or cfg.kl.place
                                                        == "reward" or cfg.pipo.enabled)
  recomputed = not (behavior or skipped)
  stats = None
  # the vocabulary matters beside a recomputed anchor alone
  if recomputed or wanted - {"in_support"}:
    stats = parts.score(params, rollout, parts.scoring)
  anchor = stats.log_probs if recomputed else rollout.behavior_log_probs if behavior else None
  reference = parts.score_reference(ref_params, rollout,
                                    parts.scoring).log_probs if cfg.kl.coef else None
  if stats is None:
    return Scores(anchor, reference)
  metered = TokenStats(stats.log_probs,
                       in_support=stats.in_support) if own and parts.meter is not None else None
  in_support = stats.in_support if recomputed else None
  return Scores(anchor, reference, stats.sum_pi_squared, stats.values, in_support, metered)
