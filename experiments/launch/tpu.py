"""Get a Cloud TPU slice from the queue, run on all its workers, watch, stop, and give it back.

  tpu="python experiments/launch/tpu.py --name=a --zone=us-east5-a"
  $tpu create --type=v5litepod-64 --runtime=v2-alpha-tpuv5-lite --spot
  $tpu state
  $tpu push
  $tpu each -- "export REPOSITORY=tree.bundle; $(cat experiments/launch/setup.sh)"
  $tpu start -- --config=configs/qwen3_4b_ctpo_v5e64.py --workdir=gs://my-bucket/a
  $tpu watch
  $tpu stop
  $tpu delete

--dry-run prints the command of gcloud and runs nothing. README.md beside this file says which type
and image belong together, what the workers need, and how to resume.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import submit
import tree

INSTALL = "install the Google Cloud CLI and log in"
LONGEST = 63
ACTIONS = {
    "create": "ask for the slice; it comes when there is one",
    "state": "print where the request stands; ACTIVE: the slice is there",
    "push": "copy this repository, with edits that are not committed, to every worker",
    "each": "run the command after -- on every worker",
    "start": "start or resume a run on every worker, with the flags after --",
    "watch": "show the output of process 0 until the run ends",
    "stop": "SIGTERM: the run saves its iteration and ends",
    "delete": "give the slice back, and with it the workers' disks",
}
WORD = re.compile(r"[\w.-]+")
TREE = "tree.bundle"  # in the home folder of each worker
PID, LOG = "~/.jaxrl_llm/run.pid", "~/.jaxrl_llm/run.log"  # of each worker; one run at a time
ALIVE = f'kill -0 "$(cat {PID} 2>/dev/null)" 2>/dev/null'


def parser() -> argparse.ArgumentParser:
  cli = submit.Parser(description=__doc__)
  cli.add_argument("--name", required=True, help="of the request and of the slice")
  cli.add_argument("--zone", required=True, help="such as us-east5-a")
  cli.add_argument("--project", help="default: gcloud's own")
  cli.add_argument(submit.DRY_RUN, action="store_true",
                   help="print the command, run nothing; it may stand anywhere")
  actions = cli.add_subparsers(dest="action", required=True, metavar="|".join(ACTIONS))
  parsers = {name: actions.add_parser(name, help=text) for name, text in ACTIONS.items()}
  parsers["create"].add_argument("--type", required=True, help="of the slice, such as v5p-32")
  parsers["create"].add_argument("--runtime", required=True, help="image of the workers")
  parsers["create"].add_argument("--spot", action="store_true",
                                 help="cheaper, and may be taken back at any time")
  parsers["start"].add_argument("--repo", default="jaxrl_llm",
                                help="this repository, from the home folder of the workers")
  parsers["start"].add_argument("--python", default=".venv/bin/python",
                                help="interpreter that has the package, from --repo")
  return cli


def check(flags: argparse.Namespace, behind: Sequence[str]) -> None:
  submit.check_name(flags.name, LONGEST)
  for key in ("zone", "project", "type", "runtime"):
    value = getattr(flags, key, None)
    if value is not None and not WORD.fullmatch(value):
      submit.refuse(f"--{key}={value}: allowed are letters, digits, and . _ - between them. Fix: a "
                    "name that gcloud lists.")
  if flags.action == "start":
    submit.check_run(behind)
  elif flags.action == "each":
    if len(behind) != 1:
      submit.refuse(f"each: {len(behind)} arguments after --, allowed is 1. Fix: each -- "
                    "'<command in quotes>'.")
  elif behind:
    submit.refuse(f"{behind[0]}: {flags.action} takes nothing after --. Fix: leave it out.")


def begin(flags: argparse.Namespace, run: Sequence[str]) -> str:
  """Returns the line that starts the run on a worker, apart from the connection.

  Nothing says which worker it is: JAX asks the machine.
  """
  command = shlex.join([flags.python, "-u", submit.MAIN, *run])
  return (f"if {ALIVE}; then echo 'error: a run is alive on this worker. Fix: stop it, or watch it'"
          f" >&2; exit 1; fi; mkdir -p ~/.jaxrl_llm && cd {shlex.quote(flags.repo)} && "
          f"{{ nohup {command} >> {LOG} 2>&1 < /dev/null & echo $! > {PID}; }}")


def bundle_path(name: str) -> Path:
  return Path(tempfile.gettempdir()) / f"{name}.bundle"


def pack(path: Path) -> None:
  """Writes the repository to a file, and says what it holds."""
  try:
    content = tree.bundle(submit.ROOT, path)
  except (OSError, subprocess.CalledProcessError) as error:
    text = " ".join(str(getattr(error, "stderr", error)).split())
    submit.refuse(f"push: git cannot pack {submit.ROOT}: {text}. Fix: a clone of the repository, "
                  "and git.")
  print(f"{content}, {path.stat().st_size / 1e6:.0f} MB")


def command(flags: argparse.Namespace, behind: Sequence[str]) -> list[str]:
  """Returns the command of gcloud."""
  where = [f"--zone={flags.zone}", *([f"--project={flags.project}"] if flags.project else [])]
  queue = lambda verb, *more: ["gcloud", "compute", "tpus", "queued-resources", verb, flags.name,
                               *where, *more]
  worker = lambda which, line: ["gcloud", "compute", "tpus", "tpu-vm", "ssh", flags.name, *where,
                                f"--worker={which}", f"--command={line}"]
  if flags.action == "create":
    return queue("create", f"--node-id={flags.name}", f"--accelerator-type={flags.type}",
                 f"--runtime-version={flags.runtime}", *(["--spot"] if flags.spot else []))
  if flags.action == "state":
    return queue("describe", "--format=value(state.state)")
  if flags.action == "delete":  # --force: the slice, too, not the request alone
    return queue("delete", "--force", "--quiet")
  if flags.action == "push":
    return ["gcloud", "compute", "tpus", "tpu-vm", "scp", str(bundle_path(flags.name)),
            f"{flags.name}:{TREE}", *where, "--worker=all"]
  if flags.action == "watch":
    return worker("0", f'tail -n 40 --pid="$(cat {PID})" -F {LOG}')
  if flags.action == "stop":  # one is enough, and another one might come as a second SIGTERM
    return worker("0", f'if {ALIVE}; then kill -TERM "$(cat {PID})"; else echo "no run here"; fi')
  return worker("all", behind[0] if flags.action == "each" else begin(flags, behind))


def main() -> None:
  arguments, behind = submit.split(sys.argv[1:])
  flags = parser().parse_args(arguments)
  check(flags, behind)
  if flags.action == "push" and not submit.is_dry(sys.argv):
    pack(bundle_path(flags.name))
  submit.hand_in(command(flags, behind), INSTALL, submit.is_dry(sys.argv))


if __name__ == "__main__":
  main()
