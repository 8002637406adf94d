"""Is the count in the hidden state when the head does not say it, and what brings it back?

  python experiments/papers/counting/run.py           # the seeds that are missing, then the tables
  python experiments/papers/counting/run.py --render   # the tables again, from the results
  python experiments/papers/counting/run.py --seeds=7 --out=runs/counting

Writes results/seed<n>.json and the tables of README.md beside this file.
"""

import collections
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.tables_lib import fitting, head_rows, readout, seed_results
from experiments.tables_lib.compare import interval
from experiments.tables_lib.page_parts import narrow_tables, replace_part
from experiments.tables_lib.residual_stream import normed
from jaxrl_llm.config import (
  ModelConfig,
  OptimizerConfig,
  ParametersConfig,
  TaskConfig,
  WarmStartConfig,
  load_plugins,
)
from jaxrl_llm.models import Model
from jaxrl_llm.reporting.tables import MISSING
from jaxrl_llm.runs.rollout_batch import prompt_batch
from jaxrl_llm.tasks import make_task
from jaxrl_llm.training.optimizers import make_optimizer, warm_start_schedule

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
DIGITS = "123456789"
WIDTH, PROMPT = 38, 36  # columns of a row, and of the longest prompt
SHAPE = ModelConfig(vocab_size=40, width=128, num_layers=4, num_heads=4, num_kv_heads=2,
                    head_dim=32, mlp_width=384, tie_head=False)
MODEL = Model(SHAPE).of_single_segments
# Without the embedding: the last token of a prompt is always the colon.
LAYERS = tuple(range(1, SHAPE.num_layers + 1))
BATCH, STEPS, RATE = 64, 200, 1e-3
FITTED, HELD, TEST = 600, 200, 256  # prompts for probe and repair, for alpha, for the report
ROW_STEPS = 500
LORA_STEPS, LORA_RATE = 150, 2e-3
FIRST = 1_000_000  # batches from here on are not those of the first training
MODES = ("restricted", "full", "generated")
BY_LAYER = {  # column: variant, what was measured
    "R²": ("trained", "r_squared"), "mean cos, trained": ("trained", "alignment"),
    "mean cos, planted": ("planted", "alignment"),
    "largest cos, planted": ("planted", "largest_alignment"),
    "lens right, trained": ("trained", "lens"), "lens right, planted": ("planted", "lens"),
    "median rank, planted": ("planted", "rank"),
}


@functools.cache
def the_task(seed: int, size: int):
  load_plugins((str(HERE / "task.py"),))
  return make_task(TaskConfig(name="list_length"), seed, size)


def digit_ids(task) -> np.ndarray:
  return np.array([task.tokenizer.encode(digit)[0] for digit in DIGITS])


def trained(seed: int):
  """Returns parameters that count."""
  warm = WarmStartConfig(steps=STEPS, learning_rate=RATE)
  batches = fitting.supervised(the_task(seed, BATCH), WIDTH, range(STEPS))
  tx = make_optimizer(OptimizerConfig(), warm_start_schedule(warm))
  return fitting.fit(MODEL, MODEL.init(jax.random.key(seed)), batches, tx).params


def states_of(params, task, problems) -> tuple[np.ndarray, np.ndarray]:
  """Returns states [N + 1, B, D] of LAYERS and after the final norm, and counts [B]."""
  prompts = prompt_batch(task, problems, PROMPT)
  states = readout.last_states(MODEL, params, prompts, LAYERS)
  last = normed(MODEL, params, states[-1:])
  return (np.concatenate([states, last]), np.array([int(one.answer) for one in problems]))


def repaired(params, seed: int, task, problems) -> dict:
  """Returns the parameters that each repair makes of planted ones."""
  ids = digit_ids(task)
  states, counts = states_of(params, task, problems)
  batch = head_rows.States(jnp.asarray(states[-1]), jnp.asarray(ids[counts - 1]))
  rows = ParametersConfig("selected", head_rows=tuple(map(int, ids)))
  tx = optax.adam(optax.exponential_decay(0.1, 1, 0.99))
  losses = {"rows, hinge": head_rows.hinge(head_rows.others(MODEL, ids)),
            "rows, cross-entropy": head_rows.cross_entropy}
  repairs = {name: fitting.fit(MODEL, params, [batch] * ROW_STEPS, tx, loss=loss,
                               leaves=fitting.Leaves(rows)).params for name, loss in losses.items()}
  lora = ParametersConfig("lora", lora_rank=16, lora_alpha=32.0,
                          lora_targets=("attention/(query|value)",))
  warm = WarmStartConfig(steps=LORA_STEPS, learning_rate=LORA_RATE)
  tx = make_optimizer(OptimizerConfig(), warm_start_schedule(warm))
  repairs["LoRA q/v"] = fitting.fit(MODEL, params, digits_only(seed), tx,
                                    leaves=fitting.Leaves(lora, jax.random.key(seed))).params
  return repairs


def digits_only(seed: int):
  """Yields demonstrations of which only the digit is learned, not the stop token after it."""
  indices = range(FIRST, FIRST + LORA_STEPS)
  for batch in fitting.supervised(the_task(seed, BATCH), WIDTH, indices):
    weights = np.array(batch.loss_weights)
    weights[np.arange(len(weights)), np.asarray(batch.length) - 1] = 0
    yield batch.replace(loss_weights=jnp.asarray(2 * weights))


def measure(params, start, task, sets: list) -> dict:
  """Returns what a variant reads, by layer (last: after the final norm) and in the three modes.

  Args:
    start: the planted parameters, to count what differs.
    sets: problems to fit a probe to, to choose its alpha, and to report.
  """
  ids = digit_ids(task)
  (fitted, of_fitted), (held_out, of_held_out), (states, counts) = (
      states_of(params, task, some) for some in sets)
  readings = collections.defaultdict(list)
  for layer in range(len(states)):
    probe = readout.fit_probe(fitted[layer], of_fitted, (held_out[layer], of_held_out))
    readings["r_squared"].append(probe.r_squared(states[layer], counts))
    readings["rounded"].append(float(np.mean(probe.round(states[layer], 1, 9) == counts)))
    cosines = readout.alignment(probe.weights, np.asarray(params["head"]).T[ids])
    readings["alignment"].append(float(cosines.mean()))
    readings["largest_alignment"].append(float(cosines.max()))
  for raw in states[:-1]:
    logits, answers = np.asarray(readout.lens(MODEL, params, raw)), ids[counts - 1]
    readings["lens"].append(float(np.mean(readout.restricted(logits, ids) == answers)))
    readings["rank"].append(float(np.median(readout.ranks(logits, answers))))
  modes = readout.decode(MODEL, params, task, sets[2], ids)
  differ = jax.tree.leaves(jax.tree.map(lambda x, y: int((x != y).sum()), params, start))
  return readings | {"changed": sum(differ)} | {
      name: float(np.mean(getattr(modes, name))) for name in MODES}


def one_seed(seed: int) -> dict[str, dict]:
  """Returns what each variant reads."""
  source, test = the_task(seed, FITTED + HELD), the_task(seed, BATCH).heldout(TEST)
  more = source.batch(FIRST)
  sets, ids = [more[:FITTED], more[FITTED:], test], digit_ids(source)
  params = trained(seed)
  (states, counts), (held_out, of_held_out) = (states_of(params, source, x) for x in sets[:2])
  probe = readout.fit_probe(states[-1], counts, (held_out[-1], of_held_out))
  start = head_rows.randomised(MODEL, params, ids, seed, against=probe.weights)
  variants = {"trained": params, "planted": start,
              "random rows": head_rows.randomised(MODEL, params, ids, seed),
              **repaired(start, seed, source, sets[0])}
  return {name: measure(variant, start, source, sets) for name, variant in variants.items()}


def by_mode(results: list[dict]) -> str:
  """A row for each variant: accuracy in the three modes and by the probe, with intervals."""
  rows = []
  for name in results[0]:
    readings = [one[name] for one in results]
    generated = [100 * one["generated"] for one in readings]
    rows.append((name, *(interval([100 * one[mode] for one in readings]) for mode in MODES),
                 f"{min(generated):.1f} to {max(generated):.1f}",
                 interval([100 * one["rounded"][-1] for one in readings]),
                 f"{min(one['r_squared'][-1] for one in readings):.4f}",
                 " ".join(sorted({f"{one['changed']:,}" for one in readings}))))
  return narrow_tables(("variant", "digit-restricted, %", "full vocabulary, %",
                         "greedy generation, %", "by seed", "probe, rounded, %", "smallest R²",
                         "scalars changed"), rows)


def by_layer(results: list[dict]) -> str:
  """A row for each layer: the probe and its angle with the rows, and the logit lens."""
  rows = []
  for layer, name in enumerate((*LAYERS, "after the final norm")):
    values = [[one[variant][field][layer:layer + 1] for one in results]
              for variant, field in BY_LAYER.values()]
    rows.append((name, *(interval(np.ravel(one)) if one[0] else MISSING for one in values)))
  chance = readout.chance_alignment(SHAPE.width)
  return (narrow_tables(("layer", *BY_LAYER), rows)
          + f"\nA random direction has a mean cos of {chance:.4f}.\n")


def write_tables(results: list[dict], page: Path) -> None:
  """Writes both tables into the page."""
  replace_part(page, "run.py, modes", by_mode(results))
  replace_part(page, "run.py, layers", by_layer(results))


if __name__ == "__main__":
  seed_results.main(__doc__, HERE, SEEDS, one_seed, write_tables)
