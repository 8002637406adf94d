"""Writes the tables and figures of the exact laboratory: bias and variance of every estimator.

  python experiments/exact/run.py
  python experiments/exact/run.py --plugins=experiments/extend/estimator.py --out=results/tempered

The files table.md, table.csv and the figures go into --out. With the default --out the tables of
README.md are replaced too, so methods of --plugins need another folder.
"""

import argparse
import csv
import itertools
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

from experiments.commands import cache
from experiments.tables_lib.exact import comparisons, exact_group, figures, monte_carlo, studies
from experiments.tables_lib.exact.study_tables import down, grid, number
from experiments.tables_lib.page_parts import replace_part
from jaxrl_llm.config import (
  AdvantageConfig,
  AggregationConfig,
  ConfigError,
  EstimatorConfig,
  load_plugins,
)
from jaxrl_llm.objective import advantages
from jaxrl_llm.objective.estimators.common import LOG_RATIO_BOUND, LOG_WEIGHT_BOUND
from jaxrl_llm.reporting.tables import markdown_table

HERE = Path(__file__).parent
DRIFTS, HORIZONS = (0.1, 0.3, 0.6, 1.0), (2, 4, 6, 8)
SINGLE = {"vocabulary": 3, "seed": 0}
GROUP = {"vocabulary": 3, "horizon": 4, "seed": 0}  # 31 sequences, 46,376 groups of 4
GROUP_SIZE, LARGE_GROUP, SAMPLES = 4, 16, 20_000
LARGE = ("none", "rloo", "opo", "otb", "otb, leave one out", "tempo")
ON_POLICY, OFF_POLICY = 0.0, 0.3
SQRT = EstimatorConfig("ctpo", log_low=0.025, log_high=0.05, log_dual=0.05, power=0.5)
FIXED = EstimatorConfig("ctpo", log_low=-np.log(0.8), log_high=np.log(1.2), log_dual=np.log(1.2),
                        power=0.0)
WINDOWS = {"sqrt(t)": (SQRT, (0.02, 0.05, 0.1)), "fixed [0.8, 1.2]": (FIXED, (0.05,))}
WALKS = {"length": 4000, "rows": 2000, "seed": 0}
POSITIONS = (1, 10, 100, 1000, 4000)
# Weights whose means are closer than the scatter of the instances.
PAIRS = (("prefix geometric mean", "gspo s"), ("gspo s", "minpro"), ("gspo s", "minpro, capped"),
         ("minpro, capped", "minpro"))
# baseline: the advantage that estimates it from the other rows of a group
ESTIMATED = {"none": "none", "mean": "rloo", "otb": "otb, leave one out"}
README_SECTIONS = 6  # of table.md, from the first
FIELDS = ("study", "kind", "method", "advantage", "aggregation", "drift", "horizon", "group",
          "instances")


def aggregation(name: str) -> AggregationConfig:
  return AggregationConfig(name, fixed_length=GROUP["horizon"] if name == "fixed" else None)


def advantage_cells() -> list[tuple]:
  """Returns a cell per registered advantage whose inputs exist, and per option of otb.

  The study is on-policy, so the estimator's ratio does not matter.
  """
  configs = {
      name: AdvantageConfig(name)
      for name in advantages.names()
      if not exact_group.not_supplied(name)
  }
  if "otb" in configs:
    configs |= {f"otb, weight {w}": AdvantageConfig("otb", weight=w) for w in ("step", "uniform")}
    configs["otb, leave one out"] = AdvantageConfig("otb", leave_one_out=True)
  return [(name, EstimatorConfig("reinforce"), cfg, aggregation("sequence_sum"))
          for name, cfg in configs.items()]


def aggregation_cells() -> list[tuple]:
  """Returns a cell per registered aggregation, with two advantages."""
  return [(f"{a}, {name}", EstimatorConfig("reinforce"), AdvantageConfig(a), aggregation(name))
          for a in ("grpo", "rloo") for name in studies.aggregation_names()]


def estimator_cells() -> list[tuple]:
  """Returns a cell per registered estimator."""
  return [(name, cfg, AdvantageConfig("grpo"), aggregation("sequence"))
          for name, cfg in studies.as_published().items()]


def measure(instances: int, group_instances: int) -> dict[str, list[studies.TableRow]]:
  """Returns the rows of every study by its name."""
  group = {"group_size": GROUP_SIZE, "horizon": GROUP["horizon"]}
  many = studies.Population(GROUP["vocabulary"], group_instances, GROUP["seed"])
  single = studies.Population(instances=instances, **SINGLE)
  sampled = studies.SampledGroups(LARGE_GROUP, SAMPLES, GROUP["seed"])
  published = studies.as_published()
  large = [cell for cell in advantage_cells() if cell[0] in LARGE]
  rows = [
      studies.single_study("weights", studies.WEIGHTS, single, horizons=(6,), drifts=DRIFTS),
      studies.single_study("published", published, single, horizons=(6,), drifts=DRIFTS),
      studies.single_study("length", studies.WEIGHTS, single, horizons=HORIZONS,
                           drifts=(OFF_POLICY,)),
      studies.group_study("advantages", advantage_cells(), many, drift=ON_POLICY, **group),
      studies.group_study("aggregations", aggregation_cells(), many, drift=ON_POLICY, **group),
      studies.group_study("estimators", estimator_cells(), many, drift=OFF_POLICY, **group),
      studies.sampled_group_study("large groups", large, sampled, drift=ON_POLICY,
                                  vocabulary=GROUP["vocabulary"], horizon=GROUP["horizon"]),
  ]
  return {study[0].study: study for study in rows}


def paired_table(rows: list[studies.TableRow], metric: str) -> str:
  """Returns the differences of PAIRS in one metric: a row per pair, a column per drift."""
  differences = comparisons.differences(rows, PAIRS, metric)
  cells = {(d.method, d.other, d.drift):
           f"{d.mean:+.2g} ± {d.error:.1g} ({100 * d.relative:+.1f} %)" for d in differences}
  drifts = sorted({d.drift for d in differences})
  return markdown_table((metric, *(f"drift {drift:g}" for drift in drifts)),
                        [(f"{a} - {b}", *(cells[a, b, drift] for drift in drifts))
                         for a, b in PAIRS])


def baseline_table(advantages_: list[studies.TableRow], group_instances: int) -> str:
  """Returns the variances with baselines of the policy, and estimated from the group's rows."""
  known = comparisons.population_baselines(drift=ON_POLICY, group_size=GROUP_SIZE,
                                           instances=group_instances, **GROUP)
  estimated = {row.method: row for row in advantages_}
  lines = []
  for name, method in ESTIMATED.items():
    row = estimated[method]
    gain = known[name] - known["mean"]
    lines.append((name, number(float(np.mean(known[name])), studies.standard_error(known[name])),
                  number(float(np.mean(gain)), studies.standard_error(gain)), method,
                  number(row.mean["variance"], row.error["variance"])))
  return markdown_table(("baseline", "of the policy", "minus that of mean", "estimated by",
                         "from the other rows"), lines)


def identity_table(instances: int) -> str:
  rows = studies.identity_study(vocabulary=3, horizon=4, drift=0.6, instances=instances, seed=0)
  return markdown_table(("weight", "advantage", "target", "largest relative distance"),
                        [(w, a, t, f"{distance:.1e}") for w, a, t, distance in rows])


def window_table(windows: dict[str, monte_carlo.Window]) -> str:
  rows, at = [], [t - 1 for t in POSITIONS]
  for label, window in windows.items():
    simulated = zip(window.simulated[at], window.error[at], strict=True)
    rows.append((f"{label}: closed form", *(f"{x:.3f}" for x in window.closed_form[at])))
    rows.append((f"{label}: Monte Carlo", *(f"{x:.3f} ± {error:.3f}" for x, error in simulated)))
  return markdown_table(("share outside", *(f"t = {t}" for t in POSITIONS)), rows)


def sections(rows: dict[str, list[studies.TableRow]], windows: dict[str, monte_carlo.Window],
             instances: int, group_instances: int) -> dict[str, str]:
  """Returns the text of each section by its heading, in the order of table.md."""
  count = f"{group_instances} instances, every multiset of {GROUP_SIZE} among 31 sequences"
  low, high = studies.log_ratio_range(horizon=6, drifts=DRIFTS, instances=instances, **SINGLE)
  clamps = (f"Cumulative log-ratios lie in [{low:.1f}, {high:.1f}]; the clamps act beyond "
            f"±{LOG_RATIO_BOUND:g}, and from {LOG_WEIGHT_BOUND:g} up on a prefix.")
  missing = {name: exact_group.not_supplied(name) for name in advantages.names()}
  missing = [f"{name} ({', '.join(inputs)})" for name, inputs in missing.items() if inputs]
  left_out = f" Left out, as an input is not known here: {'; '.join(missing)}." if missing else ""
  slopes = "; ".join(f"{label}: {w.slope:.3f}, {w.drift:.2e}" for label, w in windows.items())
  parts = {
      "Weights, no window (exact)": (
          f"V = 3, T = 6, {instances} instances. {clamps}", grid(rows["weights"], "drift")),
      "Weights, paired differences (exact)": (
          f"The same {instances} instances: mean of the differences ± its standard error, and its "
          "share of the second mean.",
          "\n".join(paired_table(rows["weights"], m) for m in ("bias", "variance"))),
      "Stated targets (exact)": (
          f"V = 3, T = 4 with a stop token, drift 0.6, {instances} instances.",
          identity_table(instances)),
      "Group advantages (exact)": (
          f"Estimator reinforce, drift {ON_POLICY:g}, aggregation sequence_sum; {count}.{left_out}",
          down(rows["advantages"])),
      "Baselines, known and estimated (exact)": (
          "Variance of a group's gradient; estimator, aggregation and instances as above. "
          "The estimates leave out the row itself, so that all are unbiased.",
          baseline_table(rows["advantages"], group_instances)),
      "Aggregations (exact)": (
          f"Estimator reinforce, drift {ON_POLICY:g}; {count}.", down(rows["aggregations"])),
      "Estimators as registered, single sequences (exact)": (
          f"V = 3, T = 6, {instances} instances, default numbers.",
          grid(rows["published"], "drift")),
      "Weights against length (exact)": (
          f"V = 3, drift {OFF_POLICY:g}, {instances} instances.", grid(rows["length"], "horizon")),
      "Estimators as registered, groups (exact)": (
          f"Advantage grpo, aggregation sequence, drift {OFF_POLICY:g}; {count}.",
          down(rows["estimators"])),
      "Larger groups (Monte Carlo)": (
          f"As the group advantages, with {LARGE_GROUP} rows a group: {SAMPLES} sampled groups of "
          "1 instance; ± is the sampling error (jackknife).", down(rows["large groups"])),
      "Windows over long sequences (closed form and Monte Carlo)": (
          f"{WALKS['rows']} simulated rows. Slope of log std(L_t) against log t, and mean of L_T / "
          f"T: {slopes}.", window_table(windows)),
  }
  return {title: f"{head}\n\n{table}" for title, (head, table) in parts.items()}


def write_csv(rows: dict[str, list[studies.TableRow]], path: Path) -> None:
  header = [*FIELDS, *(f"{m}{suffix}" for m in studies.METRICS for suffix in ("", "_error"))]
  with open(path, "w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in itertools.chain.from_iterable(rows.values()):
      numbers = (f"{values[m]:.10g}" for m in studies.METRICS for values in (row.mean, row.error))
      writer.writerow([*(getattr(row, f) for f in FIELDS), *numbers])


def positive(text: str) -> int:
  if not text.isdigit() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1 is needed")
  return int(text)


def window_results(windows: dict[str, monte_carlo.Window]) -> str:
  """Returns the slope of log std(L_t) on log t, and the mean of L_T / T, of each walk as JSON."""
  return json.dumps({"windows": {label: {"slope": round(float(window.slope), 3),
                                         "drift": round(float(window.drift), 8)}
                                 for label, window in windows.items()}}, indent=1) + "\n"


def measure_windows() -> dict[str, monte_carlo.Window]:
  """Returns what a walk of each spread looks like through each window."""
  windows = {}
  for label, (cfg, sigmas) in WINDOWS.items():
    for sigma, window in monte_carlo.window_study(cfg, sigmas=sigmas, **WALKS).items():
      windows[f"{label}, sigma {sigma:g}"] = window
  return windows


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--instances", type=positive, default=400,
                      help="random instances of the single-sequence tables (default 400)")
  parser.add_argument("--group-instances", type=positive, default=5,
                      help="random instances of the group tables (default 5)")
  parser.add_argument("--out", type=Path, default=HERE / "results",
                      help="folder of the files (default: results beside this file)")
  parser.add_argument("--plugins", default="", help="files whose estimators and advantages enter, "
                      "too, separated by commas")
  args = parser.parse_args()
  if args.plugins and args.out == HERE / "results":
    parser.error("--plugins needs --out: the committed tables hold the package's methods only")
  try:
    load_plugins((args.plugins,))
  except ConfigError as error:
    sys.exit(f"error: {error}")
  args.out.mkdir(parents=True, exist_ok=True)
  cache.keep_programs()
  rows = measure(args.instances, args.group_instances)
  windows = measure_windows()
  variances = studies.ratio_variances(horizon=6, drift=0.6, instances=args.instances, **SINGLE)
  figures.plot_drift(rows["weights"], args.out / "drift.png")
  figures.plot_ratio_variance(variances, args.out / "ratio_variance.png")
  figures.plot_windows(windows, args.out / "windows.png")
  bodies = sections(rows, windows, args.instances, args.group_instances)
  text = [f"## {title}\n\n{body}" for title, body in bodies.items()]
  origin = (
      f"Written by `run.py --instances {args.instances} --group-instances {args.group_instances}`, "
      f"seed 0; jax {jax.__version__}, {time.process_time():.0f} s of processor time; "
      f"{len(studies.as_published())} estimators, {len(advantages.names())} advantages.\n\n")
  write_csv(rows, args.out / "table.csv")
  (args.out / "table.md").write_text("# Exact bias and variance\n\n" + origin + "\n".join(text))
  if args.out == HERE / "results":
    (HERE / "results.json").write_text(window_results(windows))
    replace_part(HERE / "README.md", "run.py", origin + "\n".join(text[:README_SECTIONS]))
  print(origin + "\n".join(text))


if __name__ == "__main__":
  main()
