"""GSM8K with the Python sandbox, by config alone: the recipe of a public model, on a tiny one."""

import html
import json
import re

import command
import pytest

from experiments.report.run_folder import read_run

RECIPE = "configs/qwen25_0_5b_gsm8k.py:ctpo"
SIZES = {
    "task.heldout_problems": 8, "rollout.prompts": 4, "rollout.group_size": 4,
    "rollout.max_prompt_tokens": 8, "rollout.max_new_tokens": 88, "rollout.window": 32,
    "rollout.slots": 16, "rollout.chunk": 16, "updates.micro_batches": 1,
    "model.compute_dtype": "float32", "evaluation.every": 5, "checkpoint.every": 5,
    "task.prompt.style": "plain", "task.prompt.system": "", "task.data.heldout_path": "",
    "task.data.split": "train", "task.data.heldout_split": "test",
}


def flags(**more) -> list[str]:
  return [f"{key}={value}" for key, value in (SIZES | more).items()]


def write_problems(path, column: str):
  """Products in GSM8K's format; `column` holds what a policy with Python would write."""
  with open(path, "w") as file:
    for n in range(64):
      a, b = 2 + n % 8, 2 + n // 8
      program = (f"```py\nprint({a}*{b})\n```\nCode execution result: {a * b}\n\n"
                 f"\\boxed{{{a * b}}}")
      file.write(json.dumps({"question": f"{a}*{b}?", column: program, "problem": f"{a}*{b}?",
                             "answer": f"{a}*{b}=<<{a}*{b}={a * b}>>{a * b}\n#### {a * b}",
                             "gold": str(a * b)}) + "\n")


def tiny_checkpoint(folder, problems):
  """A checkpoint directory whose policy writes programs: the end of a short supervised run."""
  teach = flags(**{
      "pretrained": "", "iterations": 0, "task.data.mapping": "auto", "task.data.path": problems,
      "task.data.prompt_column": "question", "task.data.answer_column": "gold",
      "task.data.demonstration_column": "program", "warm_start.steps": 300,
      "warm_start.batch_size": 16, "warm_start.learning_rate": 3e-3, "model.vocab_size": 258,
      "model.width": 64, "model.num_layers": 2, "model.num_heads": 2, "model.num_kv_heads": 1,
      "model.head_dim": 32, "model.mlp_width": 128, "model.remat": "none",
  })
  command.succeed(command.start(folder / "taught", *teach, config=RECIPE))
  command.succeed(command.launch("export", f"--workdir={folder / 'taught'}",
                                 f"--out={folder / 'checkpoint'}"))
  return folder / "checkpoint"


@pytest.mark.nightly
def test_programs_run_and_the_report_shows_them(tmp_path):
  problems = tmp_path / "gsm8k.jsonl"
  write_problems(problems, "program")
  checkpoint = tiny_checkpoint(tmp_path, problems)
  workdir = tmp_path / "run"
  command.succeed(command.start(
      workdir, *flags(**{"pretrained": checkpoint, "iterations": 5, "task.data.path": problems,
                         "tool.name": "python", "tool.timeout": 60, "rollout.max_turns": 2,
                         "rollout.max_tool_tokens": 48}), config=RECIPE))
  run = read_run(workdir)
  assert [line["iteration"] for line in run.metrics] == list(range(6))
  assert run.config["estimator"]["name"] == "ctpo" and run.config["tool"]["name"] == "python"
  assert sum(run.series("tool/calls")[1]) > 16
  rows = [row for iteration in range(1, 6) for row in run.rollouts(iteration)]
  assert any(row["correct"] for row in rows), "no program's output was boxed"
  page = (workdir / "report.html").read_text()
  shown = html.unescape(re.sub(r"<[^>]*>", "", page)).replace("↵", "")
  assert re.search(r"```py\nprint\(.*\)\n```\nCode execution result: \d+\n", shown)
