"""Does RL through noisy soft tokens teach as much as RL through sampled tokens?

  python experiments/papers/soft_tokens/run.py              # missing seeds, then the tables
  python experiments/papers/soft_tokens/run.py --seeds=3,4  # some, as in a second process
  python experiments/papers/soft_tokens/run.py --render     # the tables, from the committed results

Writes results/seed_<n>.json and the tables of README.md beside this file.
"""

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path

import jax
import numpy as np

from experiments.papers.soft_tokens import soft_runs
from experiments.papers.soft_tokens.mixtures import GAMMA, noise_scale
from experiments.papers.soft_tokens.sampler import SoftSamplerConfig
from experiments.tables_lib.compare import interval
from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm.config import base_config, from_dict
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.store.files import write_atomically
from jaxrl_llm.tasks.tokenizer import encode
from jaxrl_llm.wiring.setup import build_learner, resolve
from jaxrl_llm.wiring.warm_start import warm_start

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
TRAINING = soft_runs.Training(updates=300, prompts=4, group_size=16)
RATES = {"hard": 3e-5, "fuzzy": 1e-5, "soft": 3e-5}  # learning rates, chosen on seeds 100 and 101
STEPS, TERMS, WIDTH = 450, 3, 64  # of imitation, digits of a chain, D
GREEDY, SAMPLED, SAMPLES = 256, 64, 32  # held-out problems of both kinds, samples of a problem
LARGE = 3.0  # gamma of the source's ablation that loses
ONLY = "soft, answers only"  # control: the thoughts carry no gradient
RUNS = {"hard": GAMMA, "fuzzy": GAMMA, "soft": GAMMA, "fuzzy, large noise": LARGE, ONLY: GAMMA}
SETTINGS = tuple(soft_runs.inference_modes(1.0))
START = "none (the start)"


def config(seed: int):
  """Returns the config of the start: a policy of 0.1 M parameters after a short imitation."""
  config = base_config()
  config.plugins = (str(HERE / "task.py"),)
  config.seed = seed
  config.model.update(vocab_size=17, width=WIDTH, num_layers=2, num_heads=2, num_kv_heads=2,
                      head_dim=WIDTH // 2, mlp_width=3 * WIDTH)
  config.task.update(name="closed_chain", num_terms=TERMS, heldout_problems=GREEDY)
  config.rollout.update(prompts=TRAINING.prompts, group_size=TRAINING.group_size,
                        max_prompt_tokens=2 * TERMS - 1, max_new_tokens=4 * TERMS + 8)
  config.updates.optimizer_batches = 1
  config.warm_start.update(steps=STEPS, batch_size=64, learning_rate=3e-3)
  return resolve(from_dict(config))


def sampling(task) -> SoftSamplerConfig:
  """Returns the sampler of thoughts up to four tokens longer than a worked one."""
  end, prefill = (tuple(encode(task.tokenizer, text)) for text in ("::", "="))
  return SoftSamplerConfig(end, prefill, task.stop_ids, max_thought=4 * TERMS + 4, max_answer=2)


def measure(seed: int) -> dict[str, dict]:
  """Returns, by training, what each of the six inference settings gives.

  `right` is the share of right answers, and `solved` the share of problems that one of SAMPLES
  samples solves; None for greedy settings.
  """
  cfg, task, learner = build_learner(config(seed), jax.devices()[:1])
  policy = soft_runs.Policy(learner.model, sampling(task))
  with tempfile.TemporaryDirectory() as folder:
    start = warm_start(cfg, learner, task.tokenizer, Path(folder)).params
  problems = task.heldout(GREEDY)

  def row(params, sigma: float) -> dict:
    shares = {}
    for name, mode in soft_runs.inference_modes(sigma).items():
      greedy = name.endswith("greedy")
      grouped = policy._replace(sampling=dataclasses.replace(
          policy.sampling, group_size=1 if greedy else SAMPLES))
      right = soft_runs.evaluate(params, task, problems if greedy else problems[:SAMPLED], mode,
                                 policy=grouped, seed=seed)
      solved = None if greedy else round(float(right.any(1).mean()), 6)
      shares[name] = {"right": round(float(right.mean()), 6), "solved": solved}
    return shares

  results = {START: {"settings": row(start, float(noise_scale(start["embedding"])))}}
  for name, gamma in RUNS.items():
    sigma = float(noise_scale(start["embedding"], gamma))
    kind = name.split(",")[0]
    training = dataclasses.replace(TRAINING, learning_rate=RATES[kind], thoughts=name != ONLY)
    params, right = soft_runs.train(start, task, soft_runs.modes(sigma)[kind], training,
                                    policy=policy, seed=seed)
    parts = np.array_split(right, min(10, len(right)))
    sampled = [round(float(np.mean(part)), 6) for part in parts]
    results[name] = {"settings": row(params, sigma), "while_training": sampled}
    print(f"seed {seed}: {name}", flush=True)
  return results


def load() -> dict[int, dict]:
  """Returns the committed results by seed."""
  paths = {seed: HERE / "results" / f"seed_{seed}.json" for seed in SEEDS}
  return {seed: json.loads(path.read_text()) for seed, path in paths.items() if path.exists()}


def values(results: dict[int, dict], training: str, setting: str, kind: str) -> np.ndarray:
  """Returns percentages, one for each seed."""
  return np.array([100 * one[training]["settings"][setting][kind] for one in results.values()])


def matrix(results: dict[int, dict], settings: tuple[str, ...], kind: str) -> str:
  """Returns a row for each training and a column for each inference setting."""
  rows = [(name, *(interval(values(results, name, setting, kind)) for setting in settings))
          for name in (START, *RUNS)]
  return markdown_table(("training", *settings), rows)


def gains(results: dict[int, dict]) -> str:
  """Returns the gain in greedy accuracy over the start, in points."""
  rows = []
  for name, gamma in RUNS.items():
    mode = f"{name.split(',')[0]} greedy"
    points = [values(results, name, setting, "right") - values(results, START, setting, "right")
              for setting in ("hard greedy", mode)]
    rows.append((name, gamma if name != "hard" else "-", *map(interval, points),
                 f"{points[0].min():+.1f}", f"{np.sum(points[0] >= 10)} of {len(results)}"))
  return markdown_table(("training", "gamma", "hard greedy", "greedy in its own mode",
                         "smallest seed, hard greedy", "seeds that gain 10 points"), rows)


def differences(results: dict[int, dict]) -> str:
  """Returns differences between trainings in points, paired by seed."""
  rows = []
  for one, other in (("fuzzy", "hard"), ("soft", "hard"), ("soft", ONLY),
                     ("fuzzy, large noise", "fuzzy")):
    points = [values(results, one, *of) - values(results, other, *of)
              for of in (("hard greedy", "right"), ("hard sampled", "solved"))]
    rows.append((f"{one} - {other}", *map(interval, points)))
  return markdown_table(("trainings", "hard greedy", "pass@32, hard sampled"), rows)


def render(folder: Path) -> None:
  """Writes the tables from the committed results into `folder`."""
  results = load()
  sampled = tuple(name for name in SETTINGS if name.endswith("sampled"))
  for part, text in (("right", matrix(results, SETTINGS, "right")),
                     ("solved", matrix(results, sampled, "solved")), ("gains", gains(results)),
                     ("differences", differences(results))):
    replace_part(folder / "README.md", f"run.py, {part}", text)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--render", action="store_true", help="only write the tables again")
  parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="some of them: 3,4")
  parser.add_argument("--out", type=Path, default=HERE / "results",
                      help="folder of the results; the tables show those of the default")
  flags = parser.parse_args()
  flags.out.mkdir(parents=True, exist_ok=True)
  for seed in [] if flags.render else map(int, flags.seeds.split(",")):
    path = flags.out / f"seed_{seed}.json"
    if not path.exists():
      write_atomically(path, json.dumps(measure(seed), indent=1) + "\n")
  if len(load()) == len(SEEDS):
    render(HERE)


if __name__ == "__main__":
  main()
