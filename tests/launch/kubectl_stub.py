"""Kubernetes on this machine: `kubectl create -f -` runs the pods of a JobSet at once, on loopback.

A pod is a process that runs the container's command in its working directory, with
JOB_COMPLETION_INDEX in its environment and $(JOB_COMPLETION_INDEX) replaced in its command. With
KUBECTL_STUB_POD, the process id of pod n is written to $KUBECTL_STUB_POD.<n>.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml


def expand(text: str, variables: dict[str, str]) -> str:
  """Replaces $(NAME) as Kubernetes does: $$(NAME) and unknown names stay as they are."""
  def value(match: re.Match) -> str:
    return match[0][1:] if match[0].startswith("$$") else variables.get(match[1], match[0])
  return re.sub(r"\$?\$\((\w+)\)", value, text)


def run(jobset: dict) -> list[int]:
  pods = []
  for group in jobset["spec"]["replicatedJobs"]:
    job = group["template"]["spec"]
    for index in range(job["completions"]):
      variables = {"JOB_COMPLETION_INDEX": str(index)}
      container = job["template"]["spec"]["containers"][0]
      command = [expand(text, variables) for text in container["command"]]
      pods.append(subprocess.Popen(command, cwd=container["workingDir"],
                                   env=os.environ | variables))
      if "KUBECTL_STUB_POD" in os.environ:
        Path(f"{os.environ['KUBECTL_STUB_POD']}.{index}").write_text(str(pods[-1].pid))
  return [pod.wait() for pod in pods]


if __name__ == "__main__":
  assert sys.argv[2:] == ["create", "-f", "-"], sys.argv
  statuses = run(yaml.safe_load(sys.stdin))
  print("pods ended with", statuses)
  sys.exit(0 if not any(statuses) else 1)
