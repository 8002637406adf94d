"""What a command's run shows: report.html with its curves and completions, and warnings.

Commands observe their runs by `OBSERVERS`; a script of your own does by
`trainer.run(cfg, folder, experiments.report.OBSERVERS)`.
"""

from experiments.report.report import Report
from experiments.report.symptoms import Signs

OBSERVERS = (Signs, Report)
__all__ = ["OBSERVERS", "Report", "Signs"]
