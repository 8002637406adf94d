"""The keys of the task `dataset`."""

import dataclasses

from jaxrl_llm.fields import option, when

AUTO = "auto"
COLUMNS = when(".mapping", AUTO)
TEACHERS = when("teacher.several", text="several teachers in teacher.pretrained")


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Problems from files."""

  path: str = option("", "training problems: a file (json, jsonl, csv, tsv, parquet; also .gz), a "
                     "folder of shards or of `datasets`, or a hub name (owner/name, "
                     "owner/name:configuration); several by commas")
  weights: tuple = option((), "share of each file of `path`, such as 2,1; empty: their sizes",
                          of=(int, float))
  heldout_path: str = option("", "the same for the held-out evaluation, which then needs no "
                             "`path`; empty: task.heldout_problems rows of `path`")
  split: str = option("train", "split of a folder or hub name: a word of the paths in it, such as "
                      "train-00000.parquet or train/0.jsonl")
  heldout_split: str = option("test", "split of heldout_path", when=when(".heldout_path"))
  heldout_too_long: str = option("error", "problems of heldout_path above "
                                 "rollout.max_prompt_tokens: an error, or left out and counted "
                                 "(eval/too_long)", choices=("error", "drop"),
                                 when=when(".heldout_path"))
  mapping: str = option(AUTO, "columns and answer rule of a known set (tasks/mappings.py): gsm8k, "
                        "math, deepscaler, dapo, aime, amc23, minerva, olympiadbench, or a "
                        "plugin's; auto: the columns below; one, or one for each file by commas")
  prompt_column: str = option("problem", "column of the question: a text, or a list of messages; "
                              "meta.question inside an object", when=COLUMNS)
  answer_column: str = option("answer", "column of the answer", when=COLUMNS)
  id_column: str = option("", "column of a unique id; empty: the row number", when=COLUMNS)
  demonstration_column: str = option("", "column of a worked completion, for the warm start; of "
                                     "messages the last one", when=COLUMNS)
  teacher_column: str = option("", "column of the name of the teacher of a row's completions",
                               when=TEACHERS)
  bad_rows: str = option("error", "rows that cannot be read or converted: an error, or left out "
                         "and counted", choices=("error", "drop"))
  verifier: str = option(AUTO, "how answers are checked (grading/grading.py): exact, numeric, "
                         "math, strict (with a mark or a box), choice, or a plugin's; "
                         "auto: the mapping's own, math where that is auto; one, or one for each "
                         "file by commas")


@dataclasses.dataclass(frozen=True)
class DatasetKeys:
  """Config keys of the task `dataset`."""

  data: DataConfig = DataConfig()
  verifier_workers: int = option(2, "processes that check answers which need sympy", low=1,
                                 high=256)
  verifier_timeout: float = option(
      10.0, "limit of a check, seconds of processor time; an answer that needs more is wrong and"
      " counted in reward/costly", low=0.1)


def names(text: str) -> list[str]:
  """Returns the comma-separated parts of a value, without spaces around them."""
  return [name.strip() for name in text.split(",") if name.strip()] or ([text] if text else [])
