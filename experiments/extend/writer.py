"""A metric writer of your own: chosen metrics as a table of comma-separated values.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/extend_writer \
    --config.plugins=experiments/extend/writer.py \
    --config.writer.name=tensorboard,csv --config.writer.columns=reward/mean,rollout/length

If a writer raises, for example because a service is down, that is warned of once and the run goes
on: metrics.jsonl always has everything.
"""

import csv

from jaxrl_llm import register
from jaxrl_llm.reporting.metric_writers import MetricWriter


@register.metric_writer("csv", columns="reward/mean,eval/accuracy")
class Csv(MetricWriter):
  """Writes metrics.csv into the run's folder; `self.config` is the whole config, nested."""

  def write(self, iteration, values):
    """Takes the metrics of an iteration, by name."""
    names = self.numbers.columns.split(",")
    with open(self.directory / "metrics.csv", "a", newline="") as file:
      csv.writer(file).writerow([iteration, *(values.get(name, "") for name in names)])

  def restart(self, lines):
    """Takes what the run has logged before it resumes; later iterations come again."""
    (self.directory / "metrics.csv").unlink(missing_ok=True)
    for iteration, values in lines:
      self.write(iteration, values)
