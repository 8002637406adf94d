"""--dry-run prints what would be submitted, and nothing else is; bad input ends in one line."""

import copy
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

import kubectl_stub
import launching
import pytest
import slurm_stub
import yaml

from experiments.launch import tree
from experiments.tables_lib import sweeps

RUN = ("--", "--config=configs/quickstart.py", "--workdir=/shared/runs/a",
       "--config.plugins=('a b.py',)", "--config.task.data.path=$(HOME) $HOME")
MINE = list(RUN[1:])
SLURM = ("run", "--name=a", "--nodes=2", "--gpus=8", "--cpus=32", "--time=8:00:00",
         "--option=partition=gpu", "--repo=/shared/the code")
JOBSET = ("--name=a", "--pods=2", "--image=registry.example/a:1", "--claim=shared",
          "--limit=nvidia.com/gpu=8", "--select=pool=gpus")
TPU = ("--name=a", "--zone=z")
SWEEP = "experiments/mismatch/sweep.py"


def dry(script: str, *arguments: str) -> str:
  done = launching.launch(script, *arguments)
  assert done.returncode == 0, done.stderr
  return done.stdout


def insert(arguments: tuple[str, ...], *more: str) -> tuple[str, ...]:
  return (*arguments, "--dry-run", *more)


@pytest.mark.parametrize("script, arguments", [
    ("tpu", (*TPU, "start", *RUN)), ("jobset", (*JOBSET, *RUN)), ("slurm", (*SLURM, *RUN))])
def test_dry_run_may_stand_anywhere(script, arguments):
  first = 1 if script == "slurm" else 0  # behind the kind of the job
  outputs = {dry(script, *arguments[:place], "--dry-run", *arguments[place:])
             for place in (first, arguments.index("--"), len(arguments))}
  assert len(outputs) == 1


def test_a_run_in_a_bucket_needs_no_volume():
  run = (*RUN[:2], "--workdir=gs://runs-of-ours/a")
  pod = yaml.safe_load(dry("jobset", *JOBSET[:3], *JOBSET[4:], "--dry-run", *run))[
      "spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
  assert "volumes" not in pod and "volumeMounts" not in pod["containers"][0]
  assert "--workdir=gs://runs-of-ours/a" in pod["containers"][0]["command"]
  assert "--workdir=gs://runs-of-ours/a" in dry("tpu", *TPU, "start", "--dry-run", *run)
  assert "/code/runs/a/slurm-%j.out" in dry("slurm", *SLURM[:-1], "--repo=/code", "--dry-run", *run)


def test_a_worker_is_made_ready_by_setup_sh(tmp_path):
  """Each tool is a stub that notes its call; the interpreter of the new environment is this one."""
  calls, home = tmp_path / "calls", tmp_path / "home"
  stub = f'#!/bin/bash\necho "$(basename "$0") $*" >> {calls}\n'
  making = {"git": 'if [ "$1" = clone ]; then mkdir -p "$3/.git" "$3/.venv/bin" && '
                   'printf \'#!/bin/bash\\necho ready\\n\' > "$3/.venv/bin/python" && '
                   'chmod +x "$3/.venv/bin/python"; fi\n',
            "gcloud": "echo token-of-the-secret\n", "python3": "", "sudo": "", "gcsfuse": "",
            "mountpoint": "exit 1\n"}
  (tmp_path / "bin").mkdir()
  home.mkdir()
  for name, more in making.items():
    (tmp_path / "bin" / name).write_text(stub + more)
    (tmp_path / "bin" / name).chmod(0o755)
  script = launching.ROOT / "experiments" / "launch" / "setup.sh"
  environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(home),
                 "REPOSITORY": "https://host/r.git", "SECRET": "hf", "BUCKET": "b"}
  for first in ("git clone https://host/r.git jaxrl_llm", "git -C jaxrl_llm pull --ff-only"):
    calls.write_text("")
    done = subprocess.run(["bash", str(script)], env=environment, text=True, check=True,
                          capture_output=True)
    lines = calls.read_text().splitlines()
    assert lines[0] == first and done.stdout.endswith("ready\n")
    assert "python3 -m uv venv --allow-existing --python 3.12 .venv" in lines
    assert "python3 -m uv pip install --python .venv/bin/python -e .[tpu,data,math]" in lines
    assert any(line.startswith("gcsfuse") and line.endswith("b /mnt/b") for line in lines)
  token = home / ".cache" / "huggingface" / "token"
  assert token.read_text() == "token-of-the-secret\n" and token.stat().st_mode & 0o077 == 0
  refused = subprocess.run(["bash", str(script)], env={**environment, "REPOSITORY": ""}, text=True,
                           capture_output=True, check=False)
  assert refused.returncode == 1 and "REPOSITORY is not set" in refused.stderr


def test_a_tree_is_pushed_with_its_edits(tmp_path):
  """By git itself; a worker takes up what was pushed, and later what is pushed again."""
  root, home, path = tmp_path / "root", tmp_path / "home", tmp_path / "home" / "tree.bundle"
  for folder in (root, home, tmp_path / "bin"):
    folder.mkdir()
  git = lambda *more: subprocess.run(["git", "-C", str(root), *more], check=True, text=True,
                                     capture_output=True, env=os.environ | tree.IDENTITY).stdout
  git("init", "--quiet")
  (root / ".gitignore").write_text("runs\n")
  (root / "a.py").write_text("1")
  git("add", "--all")
  git("commit", "--quiet", "-m", "first")
  stub = tmp_path / "bin" / "python3"
  stub.write_text("#!/bin/bash\nmkdir -p .venv/bin; printf '#!/bin/bash\\necho ready' > "
                  ".venv/bin/python; chmod +x .venv/bin/python\n")
  stub.chmod(0o755)

  def received() -> dict[str, str]:
    subprocess.run(["bash", str(launching.ROOT / "experiments/launch/setup.sh")], check=True,
                   env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(home),
                        "REPOSITORY": "tree.bundle"})
    return {file.name: file.read_text() for file in (home / "jaxrl_llm").iterdir()
            if file.is_file()}

  assert "with edits" not in tree.bundle(root, path)
  assert received() == {".gitignore": "runs\n", "a.py": "1"}
  (root / "a.py").write_text("2")
  (root / "b.py").write_text("new")
  (root / "runs").write_text("is ignored")
  status, branches = git("status", "--short"), git("branch", "--all")
  subprocess.run(["git", "-C", str(root), "bundle", "create", "--quiet", str(path), "HEAD"],
                 check=True)
  assert received()["a.py"] == "1", "a bundle of commits leaves edits where they are"
  assert "with edits" in tree.bundle(root, path)
  assert received() == {".gitignore": "runs\n", "a.py": "2", "b.py": "new"}
  (root / "b.py").unlink()
  tree.bundle(root, path)
  assert "b.py" not in received()
  assert git("status", "--short") == status.replace("?? b.py\n", "")
  assert git("branch", "--all") == branches


def slurm_faults(script: str) -> list[str]:
  """What a batch script of `SLURM` with `RUN` gets wrong."""
  if subprocess.run(["bash", "-n"], input=script, text=True, check=False,
                    capture_output=True).returncode:
    return ["bash cannot read it"]
  wanted = {"job-name": "a", "nodes": "2", "ntasks-per-node": "1", "gpus-per-node": "8",
            "cpus-per-task": "32", "time": "8:00:00", "signal": "TERM@120", "requeue": "",
            "open-mode": "append", "partition": "gpu", "output": "/shared/runs/a/slurm-%j.out"}
  directives = slurm_stub.directives(script)
  out = [key for key in wanted.keys() | directives.keys() if wanted.get(key) != directives.get(key)]
  # What the shell makes of it: each argument of srun on a line of its own.
  body = script.replace("cd '/shared/the code'", "true").replace("srun ", "printf '%s\\n' ")
  output = subprocess.run(["bash", "-c", body], text=True, check=True, capture_output=True).stdout
  expected = ["--kill-on-bad-exit=0", "--cpus-per-task=32", sys.executable, "-u",
              "experiments/main.py", *MINE]
  if output.splitlines() != expected:
    out.append("command")
  if "cd '/shared/the code'\n" not in script:
    out.append("folder")
  return sorted(out)


def test_slurm_prints_a_batch_script():
  assert slurm_faults(dry("slurm", *insert(SLURM, *RUN))) == []


@pytest.mark.parametrize("right, wrong, fault", [
    ("signal=TERM@120", "signal=B:TERM@120", "signal"),  # to the shell, which hands nothing on
    ("ntasks-per-node=1", "ntasks-per-node=8", "ntasks-per-node"),
    ("--output=/shared/runs/a/slurm-%j.out", "--output=slurm-%j.out", "output"),
    ("#SBATCH --requeue\n", "", "requeue"),
    ("--kill-on-bad-exit=0 ", "", "command"),
    ("'--config.task.data.path=$(HOME) $HOME'", '"--config.task.data.path=$HOME"', "command"),
    ("cd '/shared/the code'\n", "", "folder"),
    ("-euo pipefail", "-euo pipefail; if", "bash cannot read it"),
])
def test_a_wrong_batch_script_is_told(right, wrong, fault):
  script = dry("slurm", *insert(SLURM, *RUN))
  assert right in script and slurm_faults(script.replace(right, wrong)) == [fault]


def test_a_sweep_submits_what_is_missing(tmp_path, monkeypatch, capsys):
  """A table's own --list is read: here of a sweep whose second and third runs are done."""
  sweep = sweeps.load(launching.ROOT / SWEEP)
  done = sweep.cells[1:3]
  monkeypatch.setattr(sweeps, "missing", lambda one, cells: [c for c in cells if c not in done])
  monkeypatch.setattr(sys, "argv", ["sweep.py", "--list"])
  sweeps.main(sweep, "")
  file = tmp_path / "the tables" / "sweep.py"
  file.parent.mkdir()
  file.write_text(f"print({capsys.readouterr().out!r})\n")
  slurm = slurm_module(monkeypatch)
  monkeypatch.setattr(slurm.submit, "ROOT", tmp_path)
  monkeypatch.setattr(sys, "argv", ["slurm.py", "sweep", str(file), "--name=m", "--gpus=0",
                                    "--cpus=4", "--time=60", "--at-once=8", "--dry-run",
                                    f"--repo={launching.ROOT}"])
  with pytest.raises(SystemExit):  # the log's folder has a blank
    slurm.main()
  assert "SLURM's log is written there" in capsys.readouterr().err
  file.rename(tmp_path / "sweep.py")
  sys.argv[2] = str(tmp_path / "sweep.py")
  slurm.main()
  script = capsys.readouterr().out
  directives = slurm_stub.directives(script)
  assert directives["array"] == f"0,3-{len(sweep.cells) - 1}%8"
  assert directives["ntasks"] == "1" and "gpus-per-node" not in directives
  body = script.replace("srun ", "printf '%s\\n' ")
  lines = subprocess.run(["bash", "-c", body], text=True, check=True, capture_output=True,
                         env={"SLURM_ARRAY_TASK_ID": "7"}).stdout.splitlines()
  assert lines[-2:] == ["sweep.py", "--index=7"]


def slurm_module(monkeypatch):
  monkeypatch.syspath_prepend(str(launching.ROOT / "experiments" / "launch"))
  import slurm

  return slurm


@pytest.mark.parametrize("numbers, text", [
    ([0, 1, 2, 5, 7, 8], "0-2,5,7-8"), ([3], "3"), (list(range(40)), "0-39")])
def test_ranges_are_slurm_s(numbers, text, monkeypatch):
  assert slurm_module(monkeypatch).ranges(numbers) == text
  assert slurm_stub.elements(text) == [str(number) for number in numbers]
  assert slurm_stub.elements(text.replace("-", ",")) != [str(number) for number in range(3)]


def jobset_faults(jobset: dict) -> list[str]:
  """What a JobSet of `JOBSET` with `RUN` gets wrong."""
  group = jobset["spec"]["replicatedJobs"][0]
  job = group["template"]["spec"]
  pod = job["template"]["spec"]
  box = pod["containers"][0]
  pods = [[kubectl_stub.expand(text, {"JOB_COMPLETION_INDEX": str(i), "HOME": "/root"})
           for text in box["command"]] for i in range(job["completions"])]
  # The rule of JobSet: <JobSet>-<group>-<job>-<pod>.<subdomain, which is the JobSet>.
  host = "{0}-{1}-0-0.{0}".format(jobset["metadata"]["name"], group["name"])
  commands = [["python", "-u", "experiments/main.py", *MINE, "--processes=2",
               f"--coordinator={host}:8476", f"--process={i}"] for i in range(2)]
  held = {
      "api": (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet"),
      "names": jobset["spec"]["network"] == {"enableDNSHostnames": True,
                                             "publishNotReadyAddresses": True},
      "restarts": jobset["spec"]["failurePolicy"] == {"maxRestarts": 3},
      "index": job["completionMode"] == "Indexed" and job["parallelism"] == job["completions"],
      "alone": (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never"),
      "twice": job.get("podReplacementPolicy") == "Failed",
      "grace": pod["terminationGracePeriodSeconds"] == 600,
      "commands": pods == commands,
      "ports": [port["containerPort"] for port in box["ports"]] == [8476, 8477],
      "devices": box["resources"]["limits"] == {"nvidia.com/gpu": "8"},
      "nodes": pod["nodeSelector"] == {"pool": "gpus"},
      "folder": box["volumeMounts"] == [{"name": "shared", "mountPath": "/shared"}]
                and pod["volumes"][0] == {"name": "shared",
                                          "persistentVolumeClaim": {"claimName": "shared"}},
  }
  return [name for name, right in held.items() if not right]


def test_jobset_prints_a_manifest():
  assert jobset_faults(yaml.safe_load(dry("jobset", *insert(JOBSET, *RUN)))) == []
  alone = yaml.safe_load(dry("jobset", *insert(JOBSET, "--pods=1", "--namespace=n", *RUN)))
  command = alone["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
  assert command["containers"][0]["command"][-1] == "--processes=1"
  assert alone["metadata"] == {"name": "a", "namespace": "n"}


@pytest.mark.parametrize("where, value, fault", [
    (("podReplacementPolicy",), "TerminatingOrFailed", "twice"),
    (("parallelism",), 1, "index"),
    (("completions",), 3, "index commands"),
    (("backoffLimit",), 6, "alone"),
    (("template", "spec", "terminationGracePeriodSeconds"), 30, "grace"),
    (("template", "spec", "containers", 0, "command", 6), "--coordinator=a-0.a:8476", "commands"),
    (("template", "spec", "containers", 0, "command", -1), "--process=0", "commands"),
    (("template", "spec", "containers", 0, "command", 6), MINE[3], "commands"),
    (("template", "spec", "containers", 0, "ports"), [{"containerPort": 8476}], "ports"),
    (("template", "spec", "containers", 0, "volumeMounts"), [], "folder"),
])
def test_a_wrong_manifest_is_told(where, value, fault):
  wrong = copy.deepcopy(yaml.safe_load(dry("jobset", *insert(JOBSET, *RUN))))
  at = wrong["spec"]["replicatedJobs"][0]["template"]["spec"]
  for key in where[:-1]:
    at = at[key]
  at[where[-1]] = value
  assert jobset_faults(wrong) == fault.split()


def test_what_is_printed_is_what_is_submitted(tmp_path):
  tools = tmp_path / "bin"
  tools.mkdir()
  for name in ("sbatch", "kubectl"):
    (tools / name).write_text(f'#!/bin/sh\n/bin/cat > {tmp_path}/{name}; echo "$@"\n')
    (tools / name).chmod(0o755)
  run = ("--", "--config=configs/quickstart.py", f"--workdir={tmp_path}/runs/a")
  for script, tool, words, arguments in (
      ("slurm", "sbatch", "", SLURM),
      ("jobset", "kubectl", "create -f -", (*JOBSET, f"--mount={tmp_path}"))):
    done = launching.launch(script, *arguments, *run, path=str(tools))
    assert (done.returncode, done.stdout.strip()) == (0, words), done.stderr
    assert (tmp_path / tool).read_text() == dry(script, *insert(arguments, *run))
  assert (tmp_path / "runs" / "a").is_dir(), "SLURM writes its log there"


TPU_CALLS = {
    ("create", "--type=v5p-32", "--runtime=r", "--spot"): (
        "queued-resources create a --zone=z --node-id=a --accelerator-type=v5p-32 "
        "--runtime-version=r --spot"),
    ("--project=p", "state"): (
        "queued-resources describe a --zone=z --project=p --format=value(state.state)"),
    ("push",): f"tpu-vm scp {tempfile.gettempdir()}/a.bundle a:tree.bundle --zone=z --worker=all",
    ("each", "--", "true"): "tpu-vm ssh a --zone=z --worker=all --command=true",
    ("stop",): (
        "tpu-vm ssh a --zone=z --worker=0 '--command=if kill -0 \"$(cat ~/.jaxrl_llm/run.pid "
        "2>/dev/null)\" 2>/dev/null; then kill -TERM \"$(cat ~/.jaxrl_llm/run.pid)\"; else echo "
        "\"no run here\"; fi'"),
    ("delete",): "queued-resources delete a --zone=z --force --quiet",
}


@pytest.mark.parametrize("arguments", TPU_CALLS, ids=lambda one: one[0])
def test_gcloud_is_called_as_the_dry_run_says(arguments, tmp_path):
  path = launching.stubs(tmp_path / "bin", gcloud="gcloud_stub")
  (tmp_path / "home").mkdir()
  assert launching.gcloud(path, tmp_path, "--dry-run", *arguments).returncode == 0
  assert not (tmp_path / "calls").exists()
  shown = shlex.split(dry("tpu", *TPU, "--dry-run", *arguments))
  assert launching.gcloud(path, tmp_path, *arguments).returncode == 0
  calls = (tmp_path / "calls").read_text().splitlines()
  assert list(map(json.loads, calls)) == [shown[1:]]
  assert shown == ["gcloud", "compute", "tpus", *shlex.split(TPU_CALLS[arguments])]


def test_a_worker_s_line_says_what_main_gets():
  shown = shlex.split(dry("tpu", *TPU, "--dry-run", "start", "--repo=the code", *RUN))
  line = shown[-1].removeprefix("--command=")
  assert "--worker=all" in shown and "cd 'the code' &&" in line
  command = re.search(r"nohup (.*?) >> ", line)[1]
  assert shlex.split(command) == [".venv/bin/python", "-u", "experiments/main.py", *MINE]


REFUSED = [
    ("slurm", (*SLURM, "--nodes=0", *RUN), "--nodes=0: allowed is 1 to inf. Fix: --nodes=1."),
    ("slurm", (*SLURM, "--nodes=x", *RUN), "--nodes: invalid int value: 'x'. Fix: see"),
    ("slurm", (*SLURM, "--name=a b", *RUN), "--name=a b: allowed are"),
    ("slurm", (*SLURM, "--time=soon", *RUN), "--time=soon: allowed are minutes"),
    ("slurm", (*SLURM, "--option=partition=a b", *RUN), "--option=partition=a b: allowed"),
    ("slurm", (*SLURM, "--option=ntasks-per-node=8", *RUN), "ntasks-per-node=8: the script says"),
    ("slurm", SLURM, "--config is not given. Fix: -- --config"),
    ("slurm", (*SLURM, *RUN, "--process=1"), "--process=1: the processes learn"),
    ("slurm", (*SLURM, *RUN[:2], "--workdir=runs/a"), "--workdir=runs/a: allowed is an absolute"),
    ("slurm", (*SLURM, *RUN[:2], "--workdir=s3://b/a"), "--workdir=s3://b/a: of addresses"),
    ("slurm", (*SLURM, *RUN[:2], "--workdir=/a%b"), "/a%b: SLURM's log is written there"),
    ("slurm", (*SLURM, *RUN, "config.seed=1"), "config.seed=1: after -- only flags"),
    ("slurm", ("sweep", "none.py", *SLURM[3:6], "--name=a"), "none.py: no file of this"),
    ("jobset", (*JOBSET, "--name=A", *RUN), "--name=A: allowed are"),
    ("jobset", (*JOBSET, f"--name={'a' * 50}", *RUN), "at most 49 characters"),
    ("jobset", (*JOBSET, "--port=65535", *RUN), "--port=65535: allowed is 1 to 65534"),
    ("jobset", (*JOBSET, "--limit=8", *RUN), "--limit=8: allowed is <key>=<value>"),
    ("jobset", (*JOBSET, *RUN[:2], "--workdir=/tmp/a"), "--workdir=/tmp/a: all pods must see it"),
    ("tpu", (*TPU, "start"), "--config is not given"),
    ("tpu", (*TPU, "create", "--type=v5p 32", "--runtime=r"), "--type=v5p 32: allowed are"),
    ("tpu", (*TPU, "each", "--", "ls", "-l"), "each: 2 arguments after --, allowed is 1"),
    ("tpu", (*TPU, "stop", "--", "now"), "now: stop takes nothing after --"),
    ("slurm", (*SLURM, "--repo=.", *RUN[:2], "--workdir=/nowhere\n"), "SLURM's log is written"),
    # Good input, but the engine's tool is not here.
    ("jobset", (*JOBSET, *RUN), "kubectl: not found on this machine. Fix: install kubectl"),
    ("tpu", (*TPU, "state"), "gcloud: not found on this machine. Fix: install the Google Cloud"),
]


@pytest.mark.parametrize("script, arguments, message", REFUSED)
def test_bad_input_ends_in_one_line(script, arguments, message):
  done = launching.launch(script, *arguments)
  assert done.returncode == 1 and done.stdout == ""
  assert done.stderr.startswith("error: ") and message in done.stderr
  assert "Fix: " in done.stderr and done.stderr.replace("/nowhere\n", "").count("\n") == 1


def test_without_sbatch_nothing_is_left_behind(tmp_path):
  done = launching.launch("slurm", *SLURM, *RUN[:2], f"--workdir={tmp_path}/a")
  assert done.returncode == 1 and "sbatch: not found on this machine. Fix: run it" in done.stderr
  assert list(tmp_path.iterdir()) == []
  tools = launching.stubs(tmp_path / "bin", sbatch="slurm_stub")
  done = launching.launch("slurm", *SLURM, *RUN[:2], "--workdir=/dev/null/a", path=tools)
  assert done.returncode == 1 and done.stderr.count("\n") == 1
  assert "/dev/null/a: Not a directory. Fix: a folder" in done.stderr
