"""Which baseline, and from how many samples of a prompt on?

  python experiments/baselines/sweep.py --list
  python experiments/baselines/sweep.py --jobs=2 --only=policy   # the frozen policies
  python experiments/baselines/sweep.py --jobs=2
  python experiments/baselines/sweep.py --render

Runs whose name begins with `policy` only make a policy, on which the gradient of every baseline is
measured (experiments/tables_lib/gradient_noise.py). The others train with one. Writes the tables of
README.md beside this file.
"""

import dataclasses
import itertools
from pathlib import Path

import numpy as np

from experiments.report.run_folder import RunFolder
from experiments.tables_lib import (
  accuracy,
  gradient_noise,
  page_parts,
  statistics,
  sweep_results,
  sweeps,
)
from experiments.tables_lib.sweeps import Cell, Sweep
from jaxrl_llm.config import AdvantageConfig
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
SCREENING = 100  # its seed
SEEDS = (0, 1, 2, 3, 5, 6, 7)  # seed 4's warm start has not learned (experiments/staleness)
CONFIG = "--config=experiments/baselines/config.py"
SIZES = (4, 8, 32)  # samples of a prompt
PROMPTS = 128  # on which gradients are measured
STAGES = {"early": 3, "late": 15}  # iterations of training
REFERENCE = "RLOO"  # unbiased
MEASURED = {
    REFERENCE: AdvantageConfig("rloo"),
    "GRPO": AdvantageConfig("grpo"),
    "OPO": AdvantageConfig("opo"),
    "OTB of the sequence": AdvantageConfig("otb", granularity="sequence"),
    "OTB": AdvantageConfig("otb"),
    "OTB, step weights": AdvantageConfig("otb", weight="step"),
    "OTB, leave one out": AdvantageConfig("otb", leave_one_out=True),
    "TEMPO": AdvantageConfig("tempo"),
}
TRAINED = {
    REFERENCE: ("--config.advantage.name=rloo",),
    "OTB of the sequence": ("--config.advantage.name=otb",
                            "--config.advantage.granularity=sequence"),
    "OTB": ("--config.advantage.name=otb",),
}
# Learning rates that are screened; the last is the config's.
RATES = {rate: (f"--config.optimizer.learning_rate={rate}",) for rate in ("1e-4", "3e-4")}
RATES["1e-3"] = ()
FEW, MANY = "4", "32"  # samples of a prompt in training, of as many prompts
ACROSS = f"{FEW} against {MANY}"
HEADER = ("samples", "baseline", "learning rate", *accuracy.SAMPLED_HEADER, "tokens, thousands")
VERDICT_HEADER = ("samples", f"minus {REFERENCE}", "mean over the run, difference",
                  "interval, Holm-corrected", "p", "seeds of this sign", "this page alone")


def cells() -> list[Cell]:
  """Returns the policies, the screening, and then the training runs, seed by seed, of baselines
  whose screening is complete.
  """
  results = sweep_results.read(HERE)
  policies = [Cell(f"policy_{stage}_seed{seed}", (
      CONFIG, f"--config.iterations={iterations}", f"--config.seed={seed}"))
      for seed in SEEDS for stage, iterations in STAGES.items()]
  pairs = tuple(itertools.product((FEW, MANY), TRAINED))
  screening = [_training(samples, name, rate, SCREENING)
               for rate in RATES for samples, name in pairs]
  return policies + screening + [
      _training(samples, name, rate, seed) for seed in SEEDS for samples, name in pairs
      if (rate := best_rate(results, samples, name))]


def _training(samples: str, name: str, rate: str, seed: int) -> Cell:
  return Cell(f"{_group(samples, name, rate)}_seed{seed}", (
      CONFIG, *TRAINED[name], f"--config.rollout.group_size={samples}", *RATES[rate],
      f"--config.seed={seed}"))


def _group(samples: str, name: str, rate: str) -> str:
  return f"{samples}_{name.lower().replace(' ', '_')}_{rate}"


def best_rate(results: dict[str, dict], samples: str, name: str) -> str | None:
  """Returns the learning rate with the highest mean over the run on the screening's seed; None
  before all have results.
  """
  return accuracy.best_step(results, {
      rate: f"{_group(samples, name, rate)}_seed{SCREENING}" for rate in RATES})


def measure(run: RunFolder) -> dict:
  """Returns the noise of every baseline on the run's policy, or the curves of a training run."""
  if Path(run.workdir).name.startswith("policy"):
    noises = gradient_noise.of_run(run.workdir, MEASURED, SIZES, PROMPTS)
    return {name: {size: dataclasses.asdict(noise) for size, noise in by_size.items()}
            for name, by_size in noises.items()}
  return {**accuracy.measure_sampled(run), "tokens": int(np.sum(run.series("rollout/tokens")[1]))}


def relative_noise(results: dict[str, dict]) -> dict[tuple[str, str, int], np.ndarray]:
  """Returns log(noise / RLOO's) by (stage, baseline, samples), [S] of the stage's policies."""
  out = {}
  for stage in STAGES:
    measured = [result["measured"] for name, result in sorted(results.items())
                if name.startswith(f"policy_{stage}_")]
    for name in MEASURED:
      for size in SIZES:
        noise, reference = (np.array([entry[key][str(size)]["noise"] for entry in measured])
                            for key in (name, REFERENCE))
        if name != REFERENCE and measured:
          out[stage, name, size] = np.log(noise / reference)
  return out


def noise_table(results: dict[str, dict]) -> str:
  """A row for each stage and baseline: its signal with the most samples, and its noise."""
  differences = relative_noise(results)
  texts, sentence = statistics.table_cells(differences)
  rows = []
  for stage, name in dict.fromkeys(key[:2] for key in differences):
    signal = [result["measured"][name][str(SIZES[-1])]["signal"] for key, result in
              results.items() if key.startswith(f"policy_{stage}_")]
    rows.append((stage, name, f"{np.mean(signal):.2f}",
                 *(texts[stage, name, size] for size in SIZES)))
  header = ("policy", "baseline", f"signal, {SIZES[-1]} samples",
            *(f"log of noise over {REFERENCE}'s, {size} samples" for size in SIZES))
  return page_parts.narrow_tables(header, rows, 2) + sentence


def trained(results: dict[str, dict]) -> dict[tuple[str, str, str], dict[int, dict]]:
  """Returns the training runs by (samples, baseline, learning rate) and seed, at the rate that the
  screening chose.
  """
  groups = sweep_results.by_seed(results)
  return {(samples, name, rate): seeds for samples in (FEW, MANY) for name in TRAINED
          if (rate := best_rate(results, samples, name))
          and (seeds := {seed: result for seed, result in
                         groups[_group(samples, name, rate)].items() if seed != SCREENING})}


def training_table(results: dict[str, dict]) -> str:
  """A row for each number of samples and baseline: sampled accuracy, and tokens of a run."""
  rows = []
  for key, seeds in trained(results).items():
    records = list(seeds.values())
    tokens = np.mean([record["measured"]["tokens"] for record in records]) / 1000
    rows.append((*key, *accuracy.sampled_row(records), f"{tokens:.0f}"))
  return page_parts.narrow_tables(HEADER, rows, 2)


def screening_table(results: dict[str, dict]) -> str:
  """A row for each number of samples and baseline: mean over the run and final accuracy."""
  rows = [(samples, name, *(accuracy.screening_cell(
      results.get(f"{_group(samples, name, rate)}_seed{SCREENING}")) for rate in RATES))
          for samples, name in itertools.product((FEW, MANY), TRAINED)]
  return tables.markdown_table(("samples", "baseline", *RATES), rows)


def verdicts(results: dict[str, dict]) -> list[tuple]:
  """Returns the rows below VERDICT_HEADER: with RLOO from as many samples, and of few with RLOO
  from many; paired by seed and warm start, corrected together.
  """
  means = {(samples, name): {seed: accuracy.mean_sampled(result["measured"])
                             for seed, result in seeds.items()}
           for (samples, name, _), seeds in trained(results).items()}
  means |= {(ACROSS, name): values for (samples, name), values in means.items() if samples == FEW}
  return statistics.comparison_rows(
      means, lambda key: (MANY if key[0] == ACROSS else key[0], REFERENCE))


def equal_tokens_table(results: dict[str, dict]) -> str:
  """A row for each baseline: sampled accuracy when as many tokens were sampled as FEW samples a
  prompt take for a run, and the difference, paired by seed.
  """
  runs = {(samples, name): seeds for (samples, name, _), seeds in trained(results).items()}
  rows = []
  for name in TRAINED:
    few, many = ({seed: result["measured"] for seed, result in runs.get((size, name), {}).items()}
                 for size in (FEW, MANY))
    ends = {seed: entry["sampled"][-1] for seed, entry in few.items()}
    reached = {seed: _at_tokens(many[seed], entry["tokens"]) for seed, entry in few.items()
               if seed in many}
    if len(reached) > 1:
      difference = statistics.bootstrap(statistics.paired(ends, reached))
      rows.append((name, f"{np.mean([entry['tokens'] for entry in few.values()]) / 1000:.0f}",
                   f"{np.mean(list(ends.values())):.2f}", f"{np.mean(list(reached.values())):.2f}",
                   f"{difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"))
  return tables.markdown_table(
      ("baseline", "tokens, thousands", f"{FEW} samples", f"{MANY} samples",
       f"{FEW} minus {MANY}"), rows)


def _at_tokens(measured: dict, tokens: float) -> float:
  """Returns a run's sampled accuracy after `tokens`, between evaluations in a straight line."""
  per_iteration = measured["tokens"] / measured["iterations"][-1]
  return float(np.interp(tokens / per_iteration, measured["iterations"], measured["sampled"]))


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the tables into README.md."""
  page = folder / "README.md"
  page_parts.replace_part(page, "sweep.py, equal tokens", equal_tokens_table(results))
  page_parts.replace_part(page, "sweep.py, noise", noise_table(results))
  page_parts.replace_part(page, "sweep.py, verdicts",
                      tables.markdown_table(VERDICT_HEADER, verdicts(results)))
  page_parts.replace_part(page, "sweep.py, screening", screening_table(results))
  page_parts.replace_part(page, "sweep.py, training",
                      training_table(results) + sweeps.made_at(results))


SWEEP = Sweep(HERE, cells(), measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
