"""SLURM on this machine: `sbatch` runs a batch script at once, `srun` starts its tasks on loopback.

Both are this file under another name. sbatch sets what the directives ask for, srun gives each task
the variables that SLURM gives it. With SLURM_STUB_TASK, srun writes to $SLURM_STUB_TASK.<n> the
process id of task n.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

NODES = "127.0.0.1"  # the first node is where process 0 listens


def directives(script: str) -> dict[str, str]:
  options = re.findall(r"^#SBATCH --([-a-z]+)(?:=(.*))?$", script, re.MULTILINE)
  return dict(options)


def sbatch(script: str) -> int:
  asked = directives(script)
  tasks = int(asked.get("ntasks") or int(asked["nodes"]) * int(asked["ntasks-per-node"]))
  job = os.environ["SLURM_STUB_JOB"]
  log = asked["output"].replace("%j", job).replace("%A", job)
  for index in elements(asked["array"]) if "array" in asked else [""]:
    variables = {"SLURM_JOB_ID": job, "SLURM_STUB_TASKS": str(tasks)}
    if index:
      variables["SLURM_ARRAY_TASK_ID"] = index
    with open(log.replace("%a", index), "a") as output:
      status = subprocess.run(["bash"], input=script, text=True, check=False, stdout=output,
                              stderr=subprocess.STDOUT, env=os.environ | variables).returncode
    print(f"job {job} {index} ended with status {status}")
  return 0


def elements(text: str) -> list[str]:
  """Returns the numbers of an array such as 0-2,5%4."""
  numbers = []
  for part in text.split("%")[0].split(","):
    first, _, last = part.partition("-")
    numbers += map(str, range(int(first), int(last or first) + 1))
  return numbers


def srun(arguments: list[str]) -> int:
  """Starts the tasks, each as if alone on its node; returns the highest status, as srun does."""
  at = next(i for i, text in enumerate(arguments) if not text.startswith("--"))
  count = int(os.environ["SLURM_STUB_TASKS"])
  tasks = []
  for number in range(count):
    variables = {"SLURM_STEP_NODELIST": NODES, "SLURM_NTASKS": str(count),
                 "SLURM_STEP_NUM_NODES": str(count), "SLURM_PROCID": str(number),
                 "SLURM_STEP_TASKS_PER_NODE": f"1(x{count})" if count > 1 else "1",
                 "SLURM_LOCALID": "0"}
    tasks.append(subprocess.Popen(arguments[at:], env=os.environ | variables))
    if "SLURM_STUB_TASK" in os.environ:
      Path(f"{os.environ['SLURM_STUB_TASK']}.{number}").write_text(str(tasks[-1].pid))
  return max(task.wait() for task in tasks)


if __name__ == "__main__":
  if Path(sys.argv[1]).name == "sbatch":
    sys.exit(sbatch(sys.stdin.read()))
  sys.exit(srun(sys.argv[2:]))
