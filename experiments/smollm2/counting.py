r"""Is a count in SmolLM2's hidden state when its head does not say it, and what brings it back?

  python experiments/smollm2/counting.py             # the seeds that are missing, then the tables
  python experiments/smollm2/counting.py --render    # the tables again, from the results
  python experiments/smollm2/counting.py --seeds 7 --out=runs/counting

The question of arXiv 2605.03258 on a list of twelve words (counting_task.py), where the place of
the question says nothing of the count. Ridge probes of the states at the prompt's last token are
fitted to 600 prompts, their alpha is chosen on 200 others, and 200 more are reported. Repairs: the
nine digits' rows of the head on these 600 prompts' final states, and adapters on query and value.
A seed is one of problems and of adapters; the checkpoint is the same. Writes
counting/results/seed<n>.json, and this folder's page.
"""

import functools
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.commands import cache
from experiments.smollm2.checkpoint import checkpoint
from experiments.smollm2.counting_task import DIGITS
from experiments.tables_lib import fitting, head_rows, readout, seed_results
from experiments.tables_lib.benchmark import loading
from experiments.tables_lib.compare import interval
from experiments.tables_lib.page_parts import replace_part
from experiments.tables_lib.residual_stream import normed
from jaxrl_llm import config as config_lib
from jaxrl_llm.config import OptimizerConfig, ParametersConfig, TaskConfig, WarmStartConfig
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.runs.rollout_batch import prompt_batch
from jaxrl_llm.tasks import make_task
from jaxrl_llm.training.optimizers import make_optimizer, warm_start_schedule

HERE = Path(__file__).parent
NAME = "experiments/smollm2/counting.py"
SEEDS = (0, 1, 2)
LAYERS = (1, 5, 10, 15, 20, 25, 30)
FITTED, HELD, TEST = 600, 200, 200  # prompts for probe and rows, for alpha, for the report
ROW_STEPS, ROW_BATCH = 300, 60
LORA_STEPS, LORA_BATCH, LORA_RATE = 200, 4, 5e-4
FIRST = 1_000_000  # batches from here on are those that adapters see
WIDTH = 576  # of a state
MODES = ("restricted", "full", "generated")


def settings() -> config_lib.Config:
  """Returns the config that loads the checkpoint and asks the task."""
  values = config_lib.base_config()
  values.pretrained = checkpoint()
  values.plugins = ("experiments.smollm2.counting_task",)
  values.task.update(name="occurrences", heldout_problems=TEST)
  values.task.prompt.update(style="chat", system="Answer with the number only.")
  values.rollout.update(max_prompt_tokens=60, max_new_tokens=4, window=4)
  values.model.scan_layers = False
  return config_lib.from_dict(values)


@functools.cache
def network():
  """Returns (model with a head of its own, its parameters, the task of seed 0)."""
  cfg = settings()
  built, params = loading.load_directory(cfg.pretrained, cfg)
  built.sampler.close()
  model, params = head_rows.untied(built.learner.model, params)
  return model.of_single_segments, params, built.task


def the_task(seed: int, size: int):
  """Returns the task whose batches have so many problems."""
  task = network()[2]
  return make_task(TaskConfig(name="occurrences", prompt=task.cfg.prompt), seed, size,
                   tokenizer=task.tokenizer, limits=task.limits)


def digit_ids(task) -> np.ndarray:
  """Returns the ids of the nine digits, [9]."""
  return np.array([task.tokenizer.encode(digit, add_special_tokens=False)[-1] for digit in DIGITS])


def states_of(params, task, problems) -> tuple[np.ndarray, np.ndarray]:
  """Returns states [len(LAYERS) + 1, B, D] of LAYERS and after the final norm, and counts [B]."""
  model = network()[0]
  prompts = prompt_batch(task, problems, task.limits.max_prompt_tokens)
  states = readout.last_states(model, params, prompts, LAYERS)
  last = normed(model, params, states[-1:])
  return (np.concatenate([states, last]), np.array([int(one.answer) for one in problems]))


def repaired(seed: int, ids: np.ndarray, states: np.ndarray, counts: np.ndarray) -> dict:
  """Returns the parameters that each repair makes.

  Args:
    states: [B, D] after the final norm.
  """
  model, params, _ = network()
  pieces = [head_rows.States(jnp.asarray(states[i:i + ROW_BATCH]),
                             jnp.asarray(ids[counts[i:i + ROW_BATCH] - 1]))
            for i in range(0, len(states), ROW_BATCH)]
  rows = ParametersConfig("selected", head_rows=tuple(map(int, ids)))
  tx = optax.adam(optax.exponential_decay(0.1, 1, 0.99))
  losses = {"rows, hinge": head_rows.hinge(head_rows.others(model, ids)),
            "rows, cross-entropy": head_rows.cross_entropy}
  batches = list(itertools.islice(itertools.cycle(pieces), ROW_STEPS))
  variants = {name: fitting.fit(model, params, batches, tx, loss=loss,
                                leaves=fitting.Leaves(rows)).params
              for name, loss in losses.items()}
  lora = ParametersConfig("lora", lora_rank=16, lora_alpha=32.0,
                          lora_targets=("attention/(query|value)",))
  warm = WarmStartConfig(steps=LORA_STEPS, learning_rate=LORA_RATE)
  tx = make_optimizer(OptimizerConfig(), warm_start_schedule(warm))
  leaves = fitting.Leaves(lora, jax.random.key(seed))
  variants["LoRA q/v"] = fitting.fit(model, params, digits_only(seed), tx, leaves=leaves).params
  return variants


def digits_only(seed: int):
  """Yields demonstrations of which only the digit is learned, not the stop token after it."""
  task = the_task(seed, LORA_BATCH)
  width = task.limits.max_prompt_tokens + 2
  for batch in fitting.supervised(task, width, range(FIRST, FIRST + LORA_STEPS)):
    weights = np.array(batch.loss_weights)
    weights[np.arange(len(weights)), np.asarray(batch.length) - 1] = 0
    yield batch.replace(loss_weights=jnp.asarray(2 * weights))


def one_seed(seed: int) -> dict:
  """Returns what probes read by layer, and the accuracy of each variant in three modes."""
  cache.keep_programs()
  model, params, _ = network()
  source, test = the_task(seed, FITTED + HELD), the_task(seed, LORA_BATCH).heldout(TEST)
  drawn, ids = source.batch(0), digit_ids(source)
  (fitted, of_fitted), (held, of_held), (states, counts) = (
      states_of(params, source, some) for some in (drawn[:FITTED], drawn[FITTED:], test))
  layers = []
  for layer in range(len(states)):
    probe = readout.fit_probe(fitted[layer], of_fitted, (held[layer], of_held))
    cosines = readout.alignment(probe.weights, np.asarray(params["head"]).T[ids])
    layers.append({"r_squared": probe.r_squared(states[layer], counts),
                   "rounded": float(np.mean(probe.round(states[layer], 1, 9) == counts)),
                   "cosine": float(cosines.mean()), "largest_cosine": float(cosines.max())})
  variants = {"as loaded": params, **repaired(seed, ids, fitted[-1], of_fitted)}
  modes = {name: readout.decode(model, variant, source, test, ids)
           for name, variant in variants.items()}
  return {"layers": layers, "modes": {
      name: {mode: float(np.mean(getattr(of, mode))) for mode in MODES}
      for name, of in modes.items()}}


def text(results: list[dict]) -> str:
  """Returns the tables of the page, with 95 % intervals over seeds."""
  layers = [(name, *(interval([one["layers"][i][field] for one in results])
                     for field in ("r_squared", "rounded", "cosine", "largest_cosine")))
            for i, name in enumerate((*LAYERS, "after the final norm"))]
  modes = [(name, *(interval([100 * one["modes"][name][mode] for one in results])
                    for mode in MODES)) for name in results[0]["modes"]]
  chance = readout.chance_alignment(WIDTH)
  return "\n".join((
      markdown_table(("variant", "digit-restricted, %", "full vocabulary, %",
                      "greedy generation, %"), modes),
      f"Probes of the checkpoint as it is loaded; a random direction has a mean cosine of "
      f"{chance:.3f}:\n",
      markdown_table(("layer", "R²", "rounded probe right", "mean cosine with a digit's row",
                      "largest"), layers)))


def write_tables(results: list[dict], _: Path) -> None:
  """Writes the tables into this folder's page."""
  replace_part(HERE / "README.md", NAME, text(results))


if __name__ == "__main__":
  seed_results.main(__doc__, HERE / "counting", SEEDS, one_seed, write_tables)
