"""Accuracy of two evaluations by kind of question, strict and lenient, beside constant answers.

  python experiments/evaluate.py --pretrained=<the GGUF file> --config=configs/smollm2_135m.py \
      --temperature=1 --out=runs/smollm2_before
  python experiments/evaluate.py --workdir=runs/smollm2 --plugins=run --temperature=1 \
      --out=runs/smollm2_after
  python experiments/smollm2/table.py runs/smollm2_before runs/smollm2_after
"""

import argparse
import collections
import json
from pathlib import Path

from experiments.smollm2.questions import NUMBER
from jaxrl_llm.fields import ConfigError


def read(folder: str) -> list[dict]:
  """Returns the problems of an evaluation with their samples.

  Raises:
    ConfigError: the folder holds none.
  """
  path = Path(folder) / "samples.jsonl"
  if not path.is_file():
    raise ConfigError(f"{path} is not there. Fix: a folder that experiments/evaluate.py wrote.")
  return [json.loads(line) for line in path.read_text().splitlines()]


def shares(problems: list[dict]) -> tuple[float, float]:
  """Returns the shares of samples that are right, strictly and by their last number."""
  pairs = [(problem["answer"], sample) for problem in problems for sample in problem["samples"]]
  last = [NUMBER.findall(sample["completion"])[-1:] == [answer] for answer, sample in pairs]
  return sum(sample["correct"] for _, sample in pairs) / len(pairs), sum(last) / len(pairs)


def constant(problems: list[dict]) -> float:
  """Returns the share of problems that the best constant answer solves."""
  answers = collections.Counter(problem["answer"] for problem in problems)
  return answers.most_common(1)[0][1] / len(problems)


def by_kind(before: list[dict], after: list[dict]) -> dict[str, dict]:
  """Returns accuracies before and after of each kind, and of `all`, with its share of the gain.

  Raises:
    ConfigError: the evaluations asked other problems.
  """
  if [problem["id"] for problem in before] != [problem["id"] for problem in after]:
    raise ConfigError("the two evaluations asked other problems. Fix: evaluate both with the same "
                      "task and task.heldout_problems.")
  kinds = sorted({problem["id"].split(":")[0] for problem in before})
  gain = sum(b["correct"] - a["correct"] for x, y in zip(before, after, strict=True)
             for a, b in zip(x["samples"], y["samples"], strict=True))
  rows = {}
  for kind in [*kinds, "all"]:
    chosen = [[problem for problem in problems if kind in ("all", problem["id"].split(":")[0])]
              for problems in (before, after)]
    (strict, lenient), (strict_after, lenient_after) = map(shares, chosen)
    samples = sum(len(problem["samples"]) for problem in chosen[0])
    rows[kind] = {
        "problems": len(chosen[0]), "constant": constant(chosen[0]),
        "before": strict, "before_lenient": lenient,
        "after": strict_after, "after_lenient": lenient_after,
        "share": (strict_after - strict) * samples / gain if gain else float("nan"),
    }
  return rows


def markdown(kinds: dict[str, dict]) -> str:
  """Returns a Markdown table with a row for each kind."""
  names = "kind | problems | constant | before | lenient | after | lenient | of the gain"
  rows = [f"| {kind} | {row['problems']} | {row['constant']:.2f} | {row['before']:.3f} | "
          f"{row['before_lenient']:.3f} | {row['after']:.3f} | {row['after_lenient']:.3f} | "
          f"{row['share']:.2f} |" for kind, row in kinds.items()]
  return "\n".join([f"| {names} |", "|---|--:|--:|--:|--:|--:|--:|--:|", *rows])


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("before", help="folder of the evaluation before training")
  parser.add_argument("after", help="folder of the evaluation after it")
  arguments = parser.parse_args()
  try:
    print(markdown(by_kind(read(arguments.before), read(arguments.after))))
  except ConfigError as error:
    parser.exit(1, f"error: {error}\n")


if __name__ == "__main__":
  main()
