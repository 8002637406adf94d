"""Bad arguments of the other commands: evaluate, export, replay, compare, plan, cache."""

import functools
import shutil

from campaign import SMALL, Case

RUN = "--workdir={here}/run"
OUT = "--out={here}/out"


def case(script: str, *flags: str, texts: tuple[str, ...] = (), **fields) -> Case:
  return Case(flags, texts, script=script, **fields)


def of_run(script: str, *flags: str, texts: tuple[str, ...] = (), **fields) -> Case:
  return Case((RUN, OUT, *flags), texts, script=script, needs=("run",), **fields)


evaluate = functools.partial(of_run, "evaluate")


def replay(*flags: str, texts: tuple[str, ...] = (), change=None, **fields) -> Case:
  prepare = None if change is None else lambda here: change(here / "run")
  return Case(("{here}/run", *flags), texts, script="replay", needs=("run",), prepare=prepare,
              **fields)


def compare(*flags: str, texts: tuple[str, ...] = (), change=None, **fields) -> Case:
  prepare = None if change is None else lambda here: change(here / "run")
  return Case((*flags, OUT), texts, script="compare", needs=("run",), prepare=prepare, **fields)


def plan(target: str, *flags: str, texts: tuple[str, ...] = (), config=SMALL, **fields) -> Case:
  return Case((f"--config={config}", f"--target={target}", *flags), texts, script="plan",
              **fields)


def rollouts_of_numbers(run):
  (path,) = (run / "rollouts").glob("*2.jsonl")
  path.write_text("1\n" * len(path.read_text().splitlines()))


EVALUATE = {
    "nothing": case("evaluate", OUT, texts=("--workdir and --pretrained",)),
    "pretrained without a config": case("evaluate", "--pretrained={here}", OUT,
                                        texts=("--config",)),
    "no samples": evaluate("--samples=0", texts=("samples",)),
    "too many samples": evaluate("--samples=100000", texts=("samples", "4096")),
    "temperature of not a number": evaluate("--temperature=nan", texts=("temperature",)),
    "mass above 1": evaluate("--top_p=1.5", texts=("top_p",)),
    "no rows at once": evaluate("--batch=0", texts=("batch",)),
    "seed of 30 digits": evaluate("--seed=" + "9" * 30, texts=("seed",)),
    "checkpoint of another iteration": evaluate("--checkpoint=77", texts=("--checkpoint=77",)),
    "out that is a file": evaluate(texts=("out",), files={"out": "x"}),
    "out in a bucket": Case((RUN, "--out=gs://bucket/out"), ("gs://bucket/out",),
                            script="evaluate", needs=("run",)),
    "out of other settings": evaluate(texts=("settings.json",),
                                      files={"out/settings.json": '{"samples": 3}'}),
    "out of broken settings": evaluate(texts=("settings.json",), files={"out/settings.json": "{"}),
    "config of another vocabulary": evaluate("--config=configs/own_data.py",
                                             texts=("task.data.path",)),
}
EXPORT = {
    "adapter of a run without one": of_run("export", "--adapter", texts=("adapter",)),
    "unknown type": of_run("export", "--dtype=float8", texts=("dtype", "float8")),
    "checkpoint of another iteration": of_run("export", "--checkpoint=9",
                                              texts=("--checkpoint=9",)),
    "out that is a file": of_run("export", texts=("out",), files={"out": "x"}),
    "out that holds a checkpoint": of_run("export", texts=("out",),
                                          files={"out/model.safetensors": "x"}),
    "out in a file": Case((RUN, "--out={here}/file/out"), ("file",), script="export",
                          needs=("run",), files={"file": "x"}),
    "out in a bucket": Case((RUN, "--out=gs://bucket/out"), ("gs://bucket/out",), script="export",
                            needs=("run",)),
    "checkpoints that are gone": of_run(
        "export", texts=("checkpoint",),
        prepare=lambda here: [shutil.rmtree(here / "run" / name)
                              for name in ("checkpoints", "best")]),
}
REPLAY = {
    "nothing": case("replay", texts=("workdir",)),
    "folder that is not there": case("replay", "{here}/x", texts=("x",)),
    "iteration that is not there": replay("--iteration=77", texts=("77",)),
    "plugin that is not there": replay("--plugins={here}/mine.py", texts=("mine.py",)),
    "no rollouts": replay(texts=("rollouts",), change=lambda run: shutil.rmtree(run / "rollouts")),
    "rollouts of numbers": replay(texts=("iteration_00002.jsonl",),
                                  change=rollouts_of_numbers),
    "page that is a folder": replay(texts=("replay",), change=lambda run: (
        run / "replay.md" / "x").mkdir(parents=True)),
}
COMPARE = {
    "nothing": case("compare", OUT, texts=("no runs",)),
    "pattern that matched nothing": compare("{here}/*", texts=("*",)),
    "keys without --train": compare("{here}/run", "--config.seed=3", texts=("--config.seed=3",)),
    "preset that does not exist": compare("--train=nope", texts=("nope",)),
    "metrics of no JSON": compare("{here}/run", texts=("metrics.jsonl",),
                                  change=lambda run: (run / "metrics.jsonl").write_text("{\n{\n")),
    "config of a list": compare("{here}/run", texts=("config.json",),
                                change=lambda run: (run / "config.json").write_text("[]")),
    "out that is a file": compare("{here}/run", texts=("out",), files={"out": "x"}),
}
PLAN = {
    "unknown chip": plan("v9:2x2", texts=("--target=v9:2x2",)),
    "a million chips": plan("v5p:1000x1000x1000", texts=("1000x1000x1000",)),
    "digits without end": plan("h100:" + "9" * 5000, texts=("h100",)),
    "length above 1": plan("h100:1", "--mean_length=1.5", texts=("mean_length",)),
    "width without end": plan("h100:1", "--config.model.width=" + "9" * 30,
                              texts=("model.width",)),
}
CACHE = {
    "unknown argument": case("cache", "--empty", texts=("--empty",)),
    "file": case("cache", texts=("file",), files={"file": "x"},
                 environment={"JAXRL_LLM_CACHE": "{here}/file"}),
    "null device": case("cache", "--clear", texts=("/dev/null",),
                        environment={"JAXRL_LLM_CACHE": "/dev/null"}),
    "home that does not exist": case("cache", texts=("no_such_user",),
                                     environment={"JAXRL_LLM_CACHE": "~no_such_user/x"}),
}
CASES = {f"{script}: {name}": value
         for script, cases in {"evaluate": EVALUATE, "export": EXPORT, "replay": REPLAY,
                               "compare": COMPARE, "plan": PLAN, "cache": CACHE}.items()
         for name, value in cases.items()}
