"""The exact laboratory's tables and figures: bias and variance of every estimator where the truth
can be enumerated.

  python experiments/exact/run.py

Writes table.md, table.csv and the figures into --out, and, where that is the default, the tables of
README.md.
"""

import argparse
import csv
import time
from pathlib import Path

import jax
import numpy as np

from jaxrl_llm.analysis import exact_group, figures, monte_carlo, studies
from jaxrl_llm.config import AdvantageConfig, AggregationConfig, EstimatorConfig
from jaxrl_llm.objective import advantages, estimators
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
ROUNDING = 1e-7  # of the float32 counts in some advantages and aggregations
POSITIONS = (1, 10, 100, 1000, 4000)
MARKERS = ("<!-- written by run.py: begin -->", "<!-- written by run.py: end -->")
FIELDS = ("study", "kind", "method", "advantage", "aggregation", "drift", "horizon", "group",
          "instances")


def aggregation(name: str) -> AggregationConfig:
  return AggregationConfig(name, fixed_length=GROUP["horizon"] if name == "fixed" else None)


def advantage_cells() -> list[tuple]:
  """Every registered advantage that can be supplied, and the options of otb; on-policy, so no ratio
  matters.
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
  return [(f"{a}, {name}", EstimatorConfig("reinforce"), AdvantageConfig(a), aggregation(name))
          for a in ("grpo", "rloo") for name in studies.aggregation_names()]


def estimator_cells() -> list[tuple]:
  return [(name, cfg, AdvantageConfig("grpo"), aggregation("sequence"))
          for name, cfg in studies.as_published().items()]


def measure(instances: int, group_instances: int) -> dict[str, list[studies.TableRow]]:
  group = {"group_size": GROUP_SIZE, "instances": group_instances, **GROUP}
  single = {"instances": instances, **SINGLE}
  exact, sampled = studies.group_study, studies.sampled_group_study
  return {
      "weights":
          studies.single_study("weights", studies.WEIGHTS, horizons=(6,), drifts=DRIFTS, **single),
      "published":
          studies.single_study("published", studies.as_published(), horizons=(6,), drifts=DRIFTS,
                               **single),
      "length":
          studies.single_study("length", studies.WEIGHTS, horizons=HORIZONS, drifts=(OFF_POLICY,),
                               **single),
      "advantages":
          exact("advantages", advantage_cells(), drift=ON_POLICY, **group),
      "aggregations":
          exact("aggregations", aggregation_cells(), drift=ON_POLICY, **group),
      "estimators":
          exact("estimators", estimator_cells(), drift=OFF_POLICY, **group),
      "large groups":
          sampled("large groups", [c for c in advantage_cells() if c[0] in LARGE], drift=ON_POLICY,
                  group_size=LARGE_GROUP, samples=SAMPLES, **GROUP),
  }


def number(mean: float, error: float = float("nan")) -> str:
  """Three significant digits; an exact 0 shows as such, whatever rounding leaves of it."""
  if np.isnan(mean):
    return "-"
  if abs(mean) < ROUNDING and not error > ROUNDING:
    return f"0 (< {ROUNDING:.0e})"
  return f"{mean:.3g} ± {error:.1g}" if error > ROUNDING else f"{mean:.3g}"


def across(rows: list[studies.TableRow], metric: str, key: str) -> str:
  """One metric: a row per method, a column per drift or horizon."""
  columns = sorted({getattr(row, key) for row in rows})
  cells = {
      (row.method, getattr(row, key)): number(row.mean[metric], row.error[metric]) for row in rows
  }
  methods = dict.fromkeys(row.method for row in rows)
  return markdown_table((metric, *(f"{key} {c:g}" for c in columns)),
                        [(m, *(cells[m, c] for c in columns)) for m in methods])


def down(rows: list[studies.TableRow]) -> str:
  """All metrics, a row per method."""
  return markdown_table(
      ("", *studies.METRICS),
      [(row.method, *(number(row.mean[m], row.error[m]) for m in studies.METRICS)) for row in rows])


def identity_table(instances: int) -> str:
  rows = studies.identity_study(vocabulary=3, horizon=4, drift=0.6, instances=instances, seed=0)
  return markdown_table(("weight", "advantage", "target", "largest relative distance"),
                        [(w, a, t, f"{distance:.1e}") for w, a, t, distance in rows])


def window_table(windows: dict[str, monte_carlo.Window]) -> str:
  rows = []
  for label, window in windows.items():
    at = [t - 1 for t in POSITIONS]
    rows.append((f"{label}: closed form", *(f"{x:.3f}" for x in window.closed_form[at])))
    rows.append((f"{label}: Monte Carlo", *(
        f"{x:.3f} ± {e:.3f}" for x, e in zip(window.simulated[at], window.error[at], strict=True))))
  return markdown_table(("share outside", *(f"t = {t}" for t in POSITIONS)), rows)


def sections(rows: dict[str, list[studies.TableRow]], windows, instances: int,
             group_instances: int) -> dict[str, str]:
  """Heading -> text, in the order of the table."""
  low, high = studies.log_ratio_range(horizon=6, drifts=DRIFTS, instances=instances, **SINGLE)
  clamps = (
      f"Cumulative log-ratios lie in [{low:.1f}, {high:.1f}]; the clamps act beyond "
      f"±{LOG_RATIO_BOUND:g}, and "
      f"from {LOG_WEIGHT_BOUND:g} up on a prefix.")
  count = f"{group_instances} instances, every multiset of {GROUP_SIZE} among 31 sequences"
  grid = lambda name, key, metrics: "\n".join(across(rows[name], m, key) for m in metrics)
  missing = {
      n: exact_group.not_supplied(n) for n in advantages.names() if exact_group.not_supplied(n)
  }
  left_out = f" Left out for want of inputs: {missing}." if missing else ""
  slopes = "; ".join(f"{label}: {w.slope:.3f}, {w.drift:.2e}" for label, w in windows.items())
  main = ("bias", "variance", "cosine", "effective")
  return {
      "Weights, no window (exact)":
          f"V = 3, T = 6, {instances} instances. {clamps}\n\n{grid('weights', 'drift', main)}",
      "Stated targets (exact)":
          f"V = 3, T = 4 with a stop token, drift 0.6, {instances} instances.\n\n" +
          identity_table(instances),
      "Group advantages (exact)":
          f"Estimator reinforce, drift {ON_POLICY:g}, aggregation sequence_sum; {count}."
          f"{left_out}\n\n{down(rows['advantages'])}",
      "Aggregations (exact)":
          f"Estimator reinforce, drift {ON_POLICY:g}; {count}.\n\n{down(rows['aggregations'])}",
      "Estimators as registered, single sequences (exact)":
          f"V = 3, T = 6, {instances} instances, default "
          f"numbers.\n\n{grid('published', 'drift', main)}",
      "Weights against length (exact)":
          f"V = 3, drift {OFF_POLICY:g}, {instances} instances.\n\n" +
          grid("length", "horizon", main),
      "Estimators as registered, groups (exact)":
          f"Advantage grpo, aggregation sequence, drift {OFF_POLICY:g}; "
          f"{count}.\n\n{down(rows['estimators'])}",
      "Larger groups (Monte Carlo)":
          f"As the group advantages, with {LARGE_GROUP} rows a group: {SAMPLES} sampled groups of "
          "1 instance; ± is the "
          f"sampling error (jackknife).\n\n{down(rows['large groups'])}",
      "Windows over long sequences (closed form and Monte Carlo)":
          f"{WALKS['rows']} simulated rows. Slope of log std(L_t) against log t, and mean of L_T / "
          f"T: {slopes}.\n\n"
          + window_table(windows),
  }


def write_csv(rows: dict[str, list[studies.TableRow]], path: Path) -> None:
  header = [*FIELDS, *(f"{m}{suffix}" for m in studies.METRICS for suffix in ("", "_error"))]
  with open(path, "w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in (r for part in rows.values() for r in part):
      numbers = (f"{values[m]:.10g}" for m in studies.METRICS for values in (row.mean, row.error))
      writer.writerow([*(getattr(row, f) for f in FIELDS), *numbers])


def write_readme(text: str) -> None:
  path = HERE / "README.md"
  before, rest = path.read_text().split(MARKERS[0])
  path.write_text(f"{before}{MARKERS[0]}\n\n{text}\n{MARKERS[1]}{rest.split(MARKERS[1])[1]}")


def positive(text: str) -> int:
  if not text.isdigit() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1 is needed")
  return int(text)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--instances", type=positive, default=30,
                      help="random problems of the single-sequence tables")
  parser.add_argument("--group-instances", type=positive, default=5,
                      help="random problems of the group tables")
  parser.add_argument("--out", type=Path, default=HERE / "results")
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  rows = measure(args.instances, args.group_instances)
  windows = {f"{label}, sigma {sigma:g}": window for label, (cfg, sigmas) in WINDOWS.items()
             for sigma, window in monte_carlo.window_study(cfg, sigmas=sigmas, **WALKS).items()}
  variances = studies.ratio_variances(horizon=6, drift=0.6, instances=args.instances, **SINGLE)
  figures.plot_drift(rows["weights"], args.out / "drift.png")
  figures.plot_ratio_variance(variances, args.out / "ratio_variance.png")
  figures.plot_windows(windows, args.out / "windows.png")
  text = {title: f"## {title}\n\n{body}" for title, body in
          sections(rows, windows, args.instances, args.group_instances).items()}
  made_by = (
      f"Written by `run.py --instances {args.instances} --group-instances {args.group_instances}`, "
      "seed 0; jax "
      f"{jax.__version__}, {time.process_time():.0f} s of processor time; "
      f"{len(estimators.names())} estimators, {len(advantages.names())} advantages.\n\n")
  write_csv(rows, args.out / "table.csv")
  (args.out / "table.md").write_text("# Exact bias and variance\n\n" + made_by +
                                     "\n".join(text.values()))
  if args.out == HERE / "results":
    write_readme(made_by + "\n".join(list(text.values())[:4]))
  print(made_by + "\n".join(text.values()))


if __name__ == "__main__":
  main()
