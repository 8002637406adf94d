"""experiments/mismatch: its README shows the tables of results.json; its script reads runs."""

import dataclasses
import json
from pathlib import Path

import jax
import pytest
from experiment_files import load

from experiments.tables_lib.page_parts import markers
from jaxrl_llm.config import Config, ConfigError, from_dict, to_dict
from jaxrl_llm.wiring import setup

HERE = Path(__file__).parent.parent / "experiments" / "mismatch"
run = load(HERE / "run.py")


def test_readme_shows_the_recorded_results():
  results = json.loads((HERE / "results.json").read_text())
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
  default = setup.resolve(Config())
  rollouts = [setup.resolve(run.with_numerics(default, options)).rollout
              for options in run.NUMERICS.values()]
  assert [(r.dtype, r.cache_dtype, r.quantization) for r in rollouts] == [
      ("float32", "float32", "none"), ("bfloat16", "bfloat16", "none"),
      ("float32", "bfloat16", "none"), ("float32", "float32", "int8"),
      ("bfloat16", "bfloat16", "int8")]


def test_a_run_with_rollout_devices_can_be_measured(tmp_path, monkeypatch):
  """The run's mesh has all devices that trained, which are only a part of the devices."""
  sections = dict(
      model=dict(vocab_size=17, width=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8,
                 mlp_width=8),
      task=dict(num_terms=2, worked_share=0.0, heldout_problems=8),
      mesh=dict(data=4, rollout=4),
      rollout=dict(prompts=4, group_size=4, max_prompt_tokens=4, max_new_tokens=4, window=4),
      updates=dict(optimizer_batches=2, staleness=1, overlap=True),
  )
  cfg = setup.resolve(from_dict(sections))
  (tmp_path / "config.json").write_text(json.dumps(to_dict(cfg)))
  monkeypatch.setattr(run, "NUMERICS", {"float32": {}})
  monkeypatch.setattr(run, "MIN_P", {"0": 0.0})

  def restored(cfg, learner, *_):
    return 3, learner.model.init(jax.random.key(0))

  monkeypatch.setattr(run.saved, "restore_trained", restored)
  result = run.measure(tmp_path, "latest", 2, None)
  assert result["iteration"] == 3 and len(result["lines"]) == 1
  assert result["lines"][0]["all"]["mismatch/absolute"] < 1e-5
  with pytest.raises(ConfigError, match=r"mesh\.data = 4"):
    setup.build(dataclasses.replace(cfg, mesh=dataclasses.replace(cfg.mesh, rollout=0)))
