"""experiments/mismatch: its README shows the tables of results.json; its numerics resolve."""

import importlib.util
import json
from pathlib import Path

from experiments.tables_lib.page_parts import markers

HERE = Path(__file__).parent.parent / "experiments" / "mismatch"


def script():
  spec = importlib.util.spec_from_file_location("mismatch_run", HERE / "run.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_readme_shows_the_recorded_results():
  run, results = script(), json.loads((HERE / "results.json").read_text())
  readme = (HERE / "README.md").read_text()
  assert results.keys() == {"1", "2"}
  for temperature, result in results.items():
    begin, end = markers(run.PART.format(temperature))
    assert readme.split(begin)[1].split(end)[0].strip() == run.tables(result).strip()
    assert [line["numerics"] for line in result["lines"][::len(run.MIN_P)]] == list(run.NUMERICS)
    changed = json.loads(json.dumps(result))
    changed["lines"][0]["keys"][0]["mismatch/k1"] += 1
    assert run.tables(changed) != run.tables(result)


def test_every_numerics_is_a_config_that_resolves():
  from jaxrl_llm.config import Config
  from jaxrl_llm.wiring import setup

  run = script()
  default = setup.resolve(Config())
  found = [setup.resolve(run.with_numerics(default, options)).rollout
           for options in run.NUMERICS.values()]
  assert [(r.dtype, r.cache_dtype, r.quantization) for r in found] == [
      ("float32", "float32", "none"),
      ("bfloat16", "bfloat16", "none"),
      ("float32", "bfloat16", "none"),
      ("float32", "float32", "int8"),
      ("bfloat16", "bfloat16", "int8"),
  ]
