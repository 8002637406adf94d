"""Submit a run to Kubernetes as a JobSet: one pod per host, each with one process.

  python experiments/launch/jobset.py --name=a --pods=2 --image=registry.example/jaxrl_llm:1 \
    --claim=shared --limit=nvidia.com/gpu=8 \
    -- --config=configs/qwen3_4b_ctpo_deepscaler.py --workdir=/shared/runs/a

--dry-run prints the manifest and submits nothing; kubectl create -f takes it. README.md beside this
file says how to watch, resume and stop.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import PurePosixPath

import submit
import yaml

INSTALL = "install kubectl and let it know the cluster"
GROUP = "run"  # of pods; part of their host names
LONGEST = 63  # characters of a host name
SUFFIX = 6  # characters that Kubernetes appends to the name of a pod
PAIR = re.compile(r"([A-Za-z0-9][-\w./]*)=(\S+)")


def parser() -> argparse.ArgumentParser:
  cli = submit.Parser(description=__doc__)
  cli.add_argument("--name", required=True, help="of the JobSet")
  cli.add_argument("--pods", type=int, required=True, help="each has one process")
  cli.add_argument("--image", required=True, help="with the package and this repository")
  cli.add_argument("--claim", help="PersistentVolumeClaim that all pods may write "
                   "(ReadWriteMany); not needed where --workdir is gs://...")
  cli.add_argument("--mount", type=PurePosixPath, default=PurePosixPath("/shared"),
                   help="where the claim is mounted; --workdir lies below it")
  cli.add_argument("--limit", action="append", default=[], metavar="RESOURCE=AMOUNT",
                   help="of each pod, such as nvidia.com/gpu=8 or cpu=32; may be repeated")
  cli.add_argument("--select", action="append", default=[], metavar="LABEL=VALUE",
                   help="label that nodes must have; may be repeated")
  cli.add_argument("--namespace", help="default: kubectl's own")
  cli.add_argument("--restarts", type=int, default=3, help="after a pod has failed")
  cli.add_argument("--grace", type=int, default=600,
                   help="seconds that a pod has to save after SIGTERM")
  cli.add_argument("--repo", default="/jaxrl_llm", help="this repository in the image")
  cli.add_argument("--python", default="python", help="interpreter in the image")
  cli.add_argument("--coordinator-host",
                   help="name of the first pod; default: the one that JobSet gives it")
  cli.add_argument("--port", type=int, default=8476, help="of the first pod, and the next one")
  cli.add_argument(submit.DRY_RUN, action="store_true",
                   help="print the manifest, submit nothing; it may stand anywhere")
  return cli


def check(flags: argparse.Namespace, run: Sequence[str]) -> None:
  submit.check_count("--pods", flags.pods, 1)
  submit.check_name(flags.name,
                    LONGEST - SUFFIX - len(f"-{GROUP}-0-{flags.pods - 1}"))
  submit.check_count("--restarts", flags.restarts, 0)
  submit.check_count("--grace", flags.grace, 1)
  if not 0 < flags.port < 65535:
    submit.refuse(f"--port={flags.port}: allowed is 1 to 65534, because the next port is used, "
                  "too. Fix: --port=8476.")
  for key in ("image", "claim") if flags.claim is not None else ("image",):
    if not re.fullmatch(r"\S+", getattr(flags, key)):
      submit.refuse(f"--{key}={getattr(flags, key)}: allowed is a name without blanks. Fix: "
                    f"--{key}=<name>.")
  if not flags.mount.is_absolute():
    submit.refuse(f"--mount={flags.mount}: allowed is an absolute path. Fix: --mount=/shared.")
  folder = submit.check_run(run)
  if folder is None:
    return
  if flags.claim is None:
    submit.refuse(f"--workdir={folder}: all pods must see it, and it would end with the pod. Fix: "
                  "--claim=<PersistentVolumeClaim>, or --workdir=gs://<bucket>/<folder>.")
  if flags.mount not in folder.parents:
    submit.refuse(f"--workdir={folder}: all pods must see it, and it would end with the pod. Fix: "
                  f"--workdir={flags.mount}/{folder.name}, or --mount.")


def pairs(flag: str, given: Sequence[str]) -> dict[str, str]:
  values = {}
  for text in given:
    match = PAIR.fullmatch(text)
    if match is None:
      submit.refuse(f"--{flag}={text}: allowed is <key>=<value> without blanks. Fix: "
                    f"--{flag}=nvidia.com/gpu=8 has this form.")
    values[match[1]] = match[2]
  return values


def container(flags: argparse.Namespace, run: Sequence[str]) -> dict:
  """Returns what a pod runs. Kubernetes puts the pod's index into the last flag."""
  # The name of the first pod: JobSet, group, number of the job, number of the pod, subdomain.
  host = flags.coordinator_host or f"{flags.name}-{GROUP}-0-0.{flags.name}"
  literal = [text.replace("$(", "$$(") for text in run]  # Kubernetes would expand $(NAME)
  place = [f"--processes={flags.pods}"]  # one: nobody is looked for
  if flags.pods > 1:
    place += [f"--coordinator={host}:{flags.port}", "--process=$(JOB_COMPLETION_INDEX)"]
  return {
      "name": GROUP,
      "image": flags.image,
      "workingDir": flags.repo,
      "command": [flags.python, "-u", submit.MAIN, *literal, *place],
      "ports": [{"containerPort": flags.port + i} for i in (0, 1)],
      "resources": {"limits": pairs("limit", flags.limit)},
  } | ({"volumeMounts": [{"name": "shared", "mountPath": str(flags.mount)}]} if flags.claim else {})


def manifest(flags: argparse.Namespace, run: Sequence[str]) -> dict:
  """Returns the JobSet."""
  pod = {
      "restartPolicy": "Never",  # one process cannot come back alone: JobSet restarts all
      "terminationGracePeriodSeconds": flags.grace,
      "nodeSelector": pairs("select", flags.select),
      "containers": [container(flags, run)],
  }
  if flags.claim:
    pod["volumes"] = [{"name": "shared", "persistentVolumeClaim": {"claimName": flags.claim}}]
  job = {
      "backoffLimit": 0,
      "completionMode": "Indexed",
      "completions": flags.pods,
      "parallelism": flags.pods,
      "podReplacementPolicy": "Failed",  # never two pods of one index
      "template": {"spec": pod},
  }
  return {
      "apiVersion": "jobset.x-k8s.io/v1alpha2",
      "kind": "JobSet",
      "metadata": {"name": flags.name}
                  | ({"namespace": flags.namespace} if flags.namespace else {}),
      "spec": {
          # A pod is ready only after it has found the others, so its name must be known before.
          "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
          "failurePolicy": {"maxRestarts": flags.restarts},
          "replicatedJobs": [{"name": GROUP, "replicas": 1, "template": {"spec": job}}],
      },
  }


def main() -> None:
  arguments, run = submit.split(sys.argv[1:])
  flags = parser().parse_args(arguments)
  check(flags, run)
  text = yaml.safe_dump(manifest(flags, run), sort_keys=False, width=1000)
  # Not `apply`: it would do nothing, and say so kindly, if a JobSet of this name has ended.
  submit.hand_in(["kubectl", "create", "-f", "-"], INSTALL, submit.is_dry(sys.argv), text)


if __name__ == "__main__":
  main()
