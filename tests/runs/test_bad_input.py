"""Bad input ends in one short error with key, value, range and fix, before anything compiles."""

import json
import runpy
import sys

import command
import jax
import ml_collections
import pytest
import tiny

from jaxrl_llm import config as config_lib
from jaxrl_llm import presets
from jaxrl_llm.config import ConfigError, from_dict, to_dict
from jaxrl_llm.objective import estimators
from jaxrl_llm.wiring import setup

ESTIMATORS = ", ".join(estimators.names())

REFUSED = {
    # what: ({key: value}, texts of the message)
    "unknown key": ({"optimizer.learning_rat": 1},
                    ["optimizer.learning_rat;", "optimizer.learning_rate"]),
    "key of another section": ({"rollout.learning_rate": 1},
                               ["rollout.learning_rate;", "optimizer.learning_rate"]),
    "unknown section": ({"optimzer.b1": 0.5}, ["optimzer", "optimizer"]),
    "value for a section": ({"rollout": 3}, ["rollout = 3", "prompts, group_size"]),
    "word for an integer": ({"seed": "abc"},
                            ["seed = 'abc'", "int", "0 to 2147483647", "--config.seed="]),
    "fraction for an integer": ({"seed": 1.5}, ["seed = 1.5", "int", "0 to 2147483647"]),
    "truth for a number": ({"optimizer.b1": True},
                           ["optimizer.b1 = True", "float", "0.0 to 0.999999"]),
    "word for an estimator's number": ({"estimator.log_low": "abc"},
                                       ["estimator.log_low = 'abc'", "float", "none"]),
    "number for a plugin": ({"plugins": (3,)}, ["plugins", "3"]),
    "below the range": ({"rollout.temperature": -1.0},
                        ["rollout.temperature = -1.0", "0.001 to 100.0"]),
    "above the range": ({"optimizer.b1": 2}, ["optimizer.b1 = 2", "0.0 to 0.999999"]),
    "not a number": ({"optimizer.learning_rate": float("nan")},
                     ["optimizer.learning_rate = nan", "0.0 to inf"]),
    "unknown choice": ({"correction.level": "tokn"},
                       ["correction.level = 'tokn'", "'none', 'token', 'sequence'",
                        "Did you mean 'token'?"]),
    "unknown task": ({"task.name": "sums"}, ["task.name = 'sums'", "modular_chain"]),
    "unknown estimator": ({"estimator.name": "pppo"}, ["estimator.name = 'pppo'", ESTIMATORS]),
    "more rows than a group has": ({"advantage.name": "pass_k", "advantage.k": 64},
                                   ["advantage.k = 64", "rollout.group_size", "advantage.k below"]),
    "parts of a reward that is shaped": (
        {"advantage.name": "gdpo", "shaping.overlong_buffer": 1},
        ["advantage.name = 'gdpo'", "shaping.overlong_buffer = 1", "a component of a reward"]),
    "option that the advantage does not read": (
        {"advantage.weight": "step"},
        ["advantage.weight = 'step'", "'grpo'", "otb", "Fix: remove it"]),
    "penalty longer than the completion": (
        {"shaping.overlong_buffer": 6},
        ["shaping.overlong_buffer = 6", "0 to 5"]),
    "dynamic sampling without groups": (
        {"dynamic_sampling.enabled": True, "rollout.group_size": 1, "advantage.name": "none"},
        ["dynamic_sampling.enabled", "group_size >= 2"]),
    "value head without a critic": ({"model.value_head": True},
                                    ["model.value_head is no key any more", "advantage.name=gae"]),
    "unknown rejection": ({"correction.reject": (("seq_k1", 0.5, 2.0),)},
                          ["seq_k1", "seq_mean_k1"]),
    "rejection for the behavior": ({"estimator.name": "minpro", "correction.level": "none",
                                    "correction.cap": 2.0,
                                    "correction.reject": (("token_k1", 0.5, 2.0),)},
                                   ["correction.reject", "updates.anchor = 'behavior'"]),
    "checkpoint that is not there": ({"pretrained": "checkpoints/none"}, ["checkpoints/none"]),
    "dataset without a file": ({"task.name": "dataset", "task.num_terms": None,
                                "task.worked_share": None},
                               ["task.data.path"]),
    "more experts than there are": ({"model.num_experts": 2, "model.experts_per_token": 3},
                                    ["model.experts_per_token = 3", "model.num_experts = 2"]),
    "number that another reads": ({"estimator.clip_low": 0.1},
                                  ["estimator.clip_low = 0.1", "'ctpo'", "log_low"]),
    "turns without a tool": ({"rollout.slots": 8, "rollout.max_turns": 2},
                             ["rollout.max_turns = 2", "no tool"]),
    "group of one": ({"rollout.group_size": 1},
                     ["rollout.group_size = 1", "'grpo'", "rollout.group_size >= 2"]),
    "split group": ({"updates.optimizer_batches": 3},
                    ["updates.optimizer_batches = 3", "rollout.prompts = 16", "1, 2, 4, 8, 16"]),
    "uneven micro-batches": ({"updates.micro_batches": 5},
                             ["updates.micro_batches = 5", "32 rows", "1, 2, 4, 8, 16, 32"]),
    "uneven warm start": ({"warm_start.micro_batches": 3},
                          ["warm_start.micro_batches = 3", "= 16", "1, 2, 4, 8, 16"]),
    "uneven heads": ({"model.num_heads": 3, "model.num_kv_heads": 2},
                     ["model.num_heads = 3", "model.num_kv_heads = 2"]),
    "odd head": ({"model.head_dim": 7}, ["model.head_dim = 7", "even"]),
    "prompt longer than the row": ({"rollout.max_prompt_tokens": 2},
                                   ["rollout.max_prompt_tokens = 2", "'modular_chain'",
                                    "max_prompt_tokens >= 3"]),
    "demonstration longer than the row": (
        {"task.worked_share": 1.0, "rollout.max_new_tokens": 2},
        ["rollout.max_new_tokens = 2"]),
    "more problems than there are": ({"task.heldout_problems": 800},
                                     ["task.heldout_problems = 800", "task.num_terms"]),
    "tokenizer larger than the model": (
        {"model.vocab_size": 16},
        ["model.vocab_size = 16", "model.vocab_size >= 17"]),
    "ratio and weight for the behavior": (
        {"updates.anchor": "behavior"},
        ["correction.level = 'sequence'", "updates.anchor = 'behavior'", "correction.level=none"]),
    "plugin file that is not there": ({"plugins": "ideas/none.py"},
                                      ["plugins = 'ideas/none.py'", "no such file"]),
    "plugin module that is not there": (
        {"plugins": "no_such_module"},
        ["plugins = 'no_such_module'", "importable module"]),
    "none as a learning rate": ({"optimizer.learning_rate": None},
                                ["optimizer.learning_rate = None", "float was expected",
                                 "0.0 to inf"]),
    "none beside a writer": ({"writer.name": "none,tensorboard"},
                             ["writer.name = 'none,tensorboard'", "writer.name=tensorboard"]),
    "too many prompts": ({"rollout.prompts": 10**10},
                         ["rollout.prompts = 10000000000", "out of range"]),
    "too wide": ({"model.width": 10**10}, ["model.width = 10000000000", "the parameters need"]),
    "rank beyond memory": ({"parameters.train": "lora", "parameters.lora_rank": 10**9},
                           ["parameters.lora_rank = 1000000000", "the parameters need"]),
    "number beyond float32": ({"optimizer.learning_rate": 1e39},
                              ["optimizer.learning_rate = 1e+39", "out of range"]),
    "key that is no text": ({3: 4}, ["the config has the key 3"]),
    "turns of yarn in the wrong order": (
        {"model.rope_scaling.name": "yarn", "model.rope_scaling.beta_fast": 1.0,
         "model.rope_scaling.beta_slow": 32.0},
        ["model.rope_scaling.beta_fast = 1.0", "model.rope_scaling.beta_slow = 32.0"]),
    "optimizer that needs the loss": ({"optimizer.name": "lbfgs"},
                                      ["optimizer.name = 'lbfgs'", "Fix: another optimizer"]),
    "open bracket": ({"server.url": "http://[::1", "server.folder": "x"},
                     ["server.url = 'http://[::1'", "http://host:8000"]),
    "port out of range": ({"server.url": "http://x:99999999", "server.folder": "x"},
                          ["server.url", "1 to 65535"]),
    "space in a host": ({"server.url": "http://a b:80", "server.folder": "x"},
                        ["server.url", "a host"]),
    "more devices than there are": ({"mesh.data": 3},
                                    ["mesh.data = 3", "there are 1", "product be 1"]),
}


@pytest.fixture(scope="module")
def compiled():
  """Names of programs compiled since the module began."""
  names = []
  jax.monitoring.register_event_duration_secs_listener(
      lambda event, _, fun_name="", **__: names.append(fun_name)
      if event == tiny.COMPILED else None)
  return names


def tiny_with(overrides: dict) -> dict:
  values = tiny.get_config().to_dict()
  for key, value in overrides.items():
    *sections, leaf = key.split(".") if isinstance(key, str) else [key]
    section = values
    for name in sections:
      section = section.setdefault(name, {})
    section[leaf] = value
  return values


def built_of(values: dict) -> setup.Built:
  return setup.build(setup.resolve(from_dict(values)), jax.devices()[:1])


def test_tiny_config_is_accepted(compiled):
  """Every refusal below is one change away from it."""
  built = built_of(tiny_with({}))
  jax.clear_caches()
  jax.jit(built.learner.model.init).lower(jax.random.key(0))
  assert compiled, "the listener heard no compilation: the tests below would pass without reason"


@pytest.mark.parametrize("what", REFUSED)
def test_refused_before_anything_compiles(what, compiled):
  overrides, texts = REFUSED[what]
  jax.clear_caches()
  compiled.clear()
  with pytest.raises(ConfigError) as error:
    built_of(tiny_with(overrides))
  assert compiled == []
  for text in texts:
    assert text in str(error.value)


def test_a_config_dict_with_a_key_that_is_no_text_is_refused():
  """Its keys cannot be sorted, so that it cannot be gone through."""
  with pytest.raises(ConfigError, match="the config has the key 3"):
    from_dict(ml_collections.ConfigDict(tiny_with({3: 4})))


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_config_survives_its_file(preset):
  cfg = from_dict(tiny.get_config(preset))
  assert from_dict(json.loads(json.dumps(to_dict(cfg)))) == cfg
  resolved = setup.resolve(cfg)
  assert from_dict(json.loads(json.dumps(to_dict(resolved)))) == resolved == setup.resolve(resolved)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_the_listing_by_command_has_every_key(capsys, monkeypatch):
  monkeypatch.setattr(sys, "argv", ["config", "--all"])
  runpy.run_module("jaxrl_llm.config", run_name="__main__")
  listing = capsys.readouterr().out.splitlines()
  listed = {line.split(" = ")[0] for line in listing if " = " in line.split("#")[0]}
  assert listed == set(config_lib.keys())


@pytest.mark.slow
def test_a_refused_command_compiles_and_leaves_nothing(tmp_path):
  log = tmp_path / "compiled.jsonl"
  error = command.refuse(command.start(tmp_path / "new", "optimizer.learning_rat=1",
                                       compile_log=log))
  assert "unknown key optimizer.learning_rat;" in error and len(error) < 700
  programs = {json.loads(line)["program"] for line in log.read_text().splitlines()}
  assert programs <= {"jit(convert_element_type)"}, "more than a constant was compiled"
  assert not (tmp_path / "new").exists()
