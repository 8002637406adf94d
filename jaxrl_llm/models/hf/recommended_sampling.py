"""The position limit and the sampling defaults that a checkpoint directory states."""

from pathlib import Path

from jaxrl_llm.models.hf.network_config import read_json

# Keys of generation_config.json, and the values that change nothing.
SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "no_repeat_ngram_size": 0}


def position_limit(directory: Path) -> int | None:
  """Returns the number of positions that a checkpoint is made for; None where config.json does not
  say.

  YaRN's factor counts from the original length, also where max_position_embeddings was not changed.
  """
  raw = read_json(directory / "config.json")
  rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
  limit = raw.get("max_position_embeddings")
  if not isinstance(limit, int) or not isinstance(rope, dict):
    return None
  if rope.get("rope_type", rope.get("type")) == "yarn" and rope.get("factor"):
    original = rope.get("original_max_position_embeddings") or limit
    limit = max(limit, int(original * rope["factor"]))
  return limit


def sampling_defaults(directory: Path) -> dict[str, float]:
  """Returns the sampling numbers of generation_config.json that are set there; {} without the file.

  With `do_sample: false` the temperature is 0.
  """
  if not (directory / "generation_config.json").exists():
    return {}
  raw = read_json(directory / "generation_config.json")
  numbers = {key: raw[key] for key in SAMPLING if raw.get(key) is not None}
  return numbers | ({"temperature": 0.0} if raw.get("do_sample") is False else {})


def differing_sampling(directory: Path, ours: dict[str, float]) -> list[str]:
  """Returns a text for each sampling number that generation_config.json and `ours` have different
  values for.

  Args:
    ours: by the names of SAMPLING; an absent one prunes nothing.
  """
  defaults = sampling_defaults(directory)
  ours = SAMPLING | ours
  return [f"{key} = {value} (here {ours[key]})" for key, value in defaults.items()
          if value != ours[key]]
