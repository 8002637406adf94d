"""Bad arguments of the other commands: evaluate, export, replay, compare, plan, cache."""

import json

from campaign import SMALL, Case

RUN = "--workdir={here}/run"
OUT = "--out={here}/out"


def of_run(script: str, *flags: str, **fields) -> Case:
  """Returns a case of a command on a finished run, whose error names `texts`."""
  return Case(flags, fields.pop("texts"), script=script, needs=("run",), **fields)


def without_a_row(here):
  """The last iteration's completions lose one."""
  (path,) = (here / "run" / "rollouts").glob("*2.jsonl")
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  path.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))


CASES = {
    "evaluate: temperature of not a number": of_run(
        "evaluate", RUN, OUT, "--temperature=nan", texts=("temperature",)),
    "evaluate: out of other settings": of_run(
        "evaluate", RUN, OUT, texts=("settings.json",),
        files={"out/settings.json": '{"samples": 3}'}),
    "export: out that holds a checkpoint": of_run(
        "export", RUN, OUT, texts=("out",), files={"out/model.safetensors": "x"}),
    "replay: rollouts of fewer rows": of_run(
        "replay", "{here}/run", texts=("iteration_00002",), prepare=without_a_row),
    "compare: metrics of no JSON": of_run(
        "compare", "{here}/run", OUT, texts=("metrics.jsonl",),
        prepare=lambda here: (here / "run" / "metrics.jsonl").write_text("{\n{\n")),
    "plan: unknown chip": Case((f"--config={SMALL}", "--target=v9:2x2"), ("--target=v9:2x2",),
                               script="plan"),
    "cache: file": Case((), ("file",), script="cache", files={"file": "x"},
                        environment={"JAXRL_LLM_CACHE": "{here}/file"}),
}
