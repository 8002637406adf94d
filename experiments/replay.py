"""Push saved rollouts of a run through every estimator.

  python experiments/replay.py runs/quickstart
  python experiments/replay.py runs/quickstart --iteration=55 --checkpoint=60

The rollouts of --iteration, sampled by an older policy, meet the policy of --checkpoint (default:
the newest, and the oldest rollouts since the checkpoint before it). Prints a table; writes
replay.md and replay.html into the run's folder.
"""

import argparse
import sys

from experiments.commands import cache
from experiments.commands.command_line import with_fix
from experiments.commands.saved import OF_RUN
from experiments.tables_lib.replay import replay_run
from jaxrl_llm.config import ConfigError, load_plugins
from jaxrl_llm.reporting.reader import RunError
from jaxrl_llm.store.checkpoints import TornCheckpointsError


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("workdir", help="folder of the run, also gs://...")
  parser.add_argument("--iteration", type=int, help="iteration of the rollouts")
  parser.add_argument("--checkpoint", type=int,
                      help="iteration of the checkpoint whose parameters are the current policy")
  parser.add_argument("--plugins", default="", help="files whose estimators are compared, too, "
                      "separated by commas; `run` stands for those that the run's config names")
  arguments = parser.parse_args()
  cache.keep_programs()
  try:
    load_plugins([name for name in arguments.plugins.split(",") if name.strip() != OF_RUN])
    print(replay_run.run(arguments.workdir, arguments.iteration, arguments.checkpoint,
                         arguments.plugins))
    print(f"the page: {arguments.workdir}/replay.html")
  except (ConfigError, RunError, TornCheckpointsError, OSError) as error:
    sys.exit(f"error: {with_fix(error)}")


if __name__ == "__main__":
  main()
