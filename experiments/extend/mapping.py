"""A dataset format and a way of checking answers of your own.

  python experiments/main.py --config=experiments/extend/config.py --workdir=runs/extend_mapping \
    --config.plugins=experiments/extend/mapping.py \
    --config.task.data.mapping=squares --config.task.data.verifier=auto \
    --config.task.data.demonstration_column=
"""

from jaxrl_llm import register
from jaxrl_llm.tasks.mappings import Fields, RowError, scalar, text


@register.verifier("last_equals")
def last_equals(completion, answer):
  """Whether the answer follows the last equals sign."""
  return completion.rpartition("=")[2].strip() == answer


@register.mapping("squares", verifier="last_equals")
def squares(row):
  """From a row of the file to what a task needs; a RowError names what is wrong with the row."""
  prompt = text(row, "problem")
  if not prompt.endswith("^2"):
    raise RowError(f"column 'problem' holds {prompt!r}; a square such as 3^2 was expected")
  return Fields(prompt, scalar(row, "answer"), demonstration=text(row, "demonstration"))
