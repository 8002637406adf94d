"""Every key is read by something: a key that no code reads would be accepted and do nothing."""

import dataclasses
import functools
import json
import sys
import types
from pathlib import Path
from unittest import mock

import config_reads
import experiment_files
import jax
import numpy as np
import pytest
import tiny_batch

from experiments.papers import arca, occ, pipo  # noqa: F401  methods of theirs are watched, too
from experiments.tasks import tool_arithmetic  # noqa: F401  it registers a task
from jaxrl_llm import config as config_lib
from jaxrl_llm import registry
from jaxrl_llm.config import Config, from_dict
from jaxrl_llm.fields import option
from jaxrl_llm.models import Model, trainable
from jaxrl_llm.objective import advantages, aggregation, correction, estimators, terms
from jaxrl_llm.objective.loss import policy_loss
from jaxrl_llm.rollouts.server import ServerSampler, weights
from jaxrl_llm.rollouts.tools import PythonSandbox, make_tool
from jaxrl_llm.runs import trainer
from jaxrl_llm.tasks import make_task
from jaxrl_llm.tasks.demonstrations import demonstrating
from jaxrl_llm.tasks.prompts import make_prompter
from jaxrl_llm.tasks.tokenizer import byte_tokenizer
from jaxrl_llm.training.optimizers import make_optimizer
from jaxrl_llm.training.train_step import init_state, train_step
from jaxrl_llm.types import AdvantageInputs, Rollout, TokenStats, TrainBatch
from jaxrl_llm.wiring import setup

KINDS = {"estimator": registry.ESTIMATORS, "advantage": registry.ADVANTAGES,
         "aggregation": registry.AGGREGATIONS, "shaping": registry.SHAPINGS,
         "term": registry.LOSS_TERMS, "transform": registry.TRANSFORMS,
         "optimizer": registry.OPTIMIZERS}


def tiny(**sections) -> Config:
  """Returns the smallest run, with values of sections replaced."""
  config = config_lib.base_config()
  config.iterations = 2
  config.model.update(vocab_size=17, width=16, num_layers=1, num_heads=1, num_kv_heads=1,
                      head_dim=8, mlp_width=16)
  config.task.update(num_terms=2, worked_share=0.5, heldout_problems=8)
  config.rollout.update(prompts=8, group_size=2, max_prompt_tokens=4, max_new_tokens=6, window=6)
  config.updates.optimizer_batches = 2
  for name, values in sections.items():
    config[name].update(values)
  return from_dict(config)


# --- what reads keys


def call_estimator(cfg, log_probs, anchor, advantages, mask):
  columns = estimators.stand_ins(cfg, anchor, mask)
  return estimators.get_estimator(cfg.name)(log_probs, anchor, advantages, mask, cfg,
                                            **columns).per_token_loss


def call_methods():
  """Traces every method with its defaults, and with each choice of each number."""
  array = jax.ShapeDtypeStruct((4, 3), np.float32)
  row = jax.ShapeDtypeStruct((4,), np.float32)
  mask, ids = jax.ShapeDtypeStruct((4, 3), bool), jax.ShapeDtypeStruct((4,), np.int32)
  tokens = jax.ShapeDtypeStruct((4, 3), np.int32)
  for name in estimators.names():
    choices = [(f.name, value) for f in dataclasses.fields(estimators.spec(name).numbers)
               for value in f.metadata["choices"] or ()]
    for cfg in (config_lib.EstimatorConfig(name), *(
        config_lib.EstimatorConfig(name, **{number: value}) for number, value in choices)):
      jax.eval_shape(functools.partial(call_estimator, cfg), array, array, array, mask)
  inputs = AdvantageInputs(row, mask, tokens, ids, anchor_log_probs=array, ref_log_probs=array,
                           sum_pi_squared=array, values=array, correction_weights=array,
                           turn_id=tokens, entropy=array,
                           columns={name: array for name in registry.COLUMNS.names()},
                           reward_parts=array)
  for name in advantages.names():
    cfg = config_lib.AdvantageConfig(name)
    jax.eval_shape(lambda x, cfg=cfg: advantages.get_advantage(cfg.name)(x, cfg), inputs)
  critic = config_lib.AdvantageConfig("gae")
  jax.eval_shape(lambda x: advantages.value_targets(x, critic), inputs)
  for name in registry.AGGREGATIONS.names():
    cfg = config_lib.AggregationConfig(name, 5 if name == "fixed" else None)
    jax.eval_shape(lambda *x, cfg=cfg: aggregation.loss_weights(*x, cfg), mask, array, ids)
  for name in registry.LOSS_TERMS.names():
    call_term(name, array, mask)
  for name in registry.OPTIMIZERS.names():
    make_optimizer(config_lib.OptimizerConfig(name))
  for name in registry.SHAPINGS.names():
    entry = registry.SHAPINGS[name]
    numbers = registry.SHAPINGS.numbers(config_lib.ShapingConfig(name))
    ones = np.ones(4)
    entry.function(ones, ones > 0, ones, np.array([0, 0, 1, 1]), ones > 0, numbers)
  gate = config_lib.CorrectionConfig(level="token", sequence_delta=0.1)
  jax.eval_shape(lambda a, b, m: correction.correction_weights(a, b, m, gate), array, array, mask)
  jax.eval_shape(lambda a, b, m: correction.sequence_mask(a, b, a, m, gate), array, array, mask)
  call_transforms()
  for file in sorted(Path(__file__).parent.glob("experiments/papers/*/reads_numbers.py")):
    experiment_files.load(file).call(tiny)


def call_term(name, array, mask):
  """Traces a term of the loss, and what a resolved config checks of it."""
  entry, cfg = registry.LOSS_TERMS[name], config_lib.LossConfig(term=config_lib.TermConfig(name))
  row, ids = (jax.ShapeDtypeStruct((4,), dtype) for dtype in (np.float32, np.int32))
  tokens = jax.ShapeDtypeStruct((4, 3), np.int32)

  def added(x, mask, row, ids, tokens):
    rollout = Rollout(tokens, mask, ids, ids, x, row > 0, ids, ids, ids, ids)
    columns = {column: x for column in entry.columns}
    columns |= {column: row for column in entry.row_columns}
    inputs = terms.TermInputs(TokenStats(x, **{one: x for one in entry.stats}),
                              TrainBatch(rollout, x, x, x, x, columns=columns), mask,
                              terms.surrogate_of(cfg))
    return terms.add(x[0, 0], {}, inputs, cfg, {terms.POLICY: x, terms.REGULARIZER: x})

  jax.eval_shape(added, array, mask, row, ids, tokens)
  teacher = {"teacher": {"pretrained": "any"}} if "teacher_log_probs" in entry.columns else {}
  setup.resolve(tiny(term={"name": name}, **teacher))


def call_transforms():
  batch = tiny_batch.make()
  batch = batch.replace(columns={"recomputed_log_probs": batch.anchor_log_probs})
  tx = make_optimizer(config_lib.OptimizerConfig())
  for name in ("ess", "entropy_share"):
    cfg = config_lib.StepConfig(config_lib.LossConfig(),
                                transform=config_lib.TransformConfig(name))
    step = functools.partial(train_step, loss=policy_loss, model=tiny_batch.MODEL, tx=tx, cfg=cfg)
    jax.eval_shape(step, init_state(tiny_batch.parameters(), tx), batch)


def call_models():
  """Makes the shapes of a mixture of experts, of stretched rotary frequencies and of windows."""
  llama = config_lib.RopeScalingConfig("llama3")
  yarn = config_lib.RopeScalingConfig("yarn")
  windows = config_lib.ModelConfig(window=2, full_layers=(1,), window_rope_base=10.0)
  for shapes in (config_lib.ModelConfig(num_experts=4), config_lib.ModelConfig(rope_scaling=llama),
                 config_lib.ModelConfig(rope_scaling=yarn), windows):
    model = Model(shapes)
    params = jax.eval_shape(model.init, jax.random.key(0))
    row = jax.ShapeDtypeStruct((1, 4), np.int32)
    jax.eval_shape(model.hidden, params, row, row, row)


def call_tasks(folder, monkeypatch):
  """Makes each task, and each style of prompt."""
  path, heldout = folder / "rows.jsonl", folder / "heldout.jsonl"
  for file, first in ((path, 0), (heldout, 8)):
    rows = [{"problem": f"{n} + 1", "answer": str(n + 1)} for n in range(first, first + 8)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
  gym = types.ModuleType("reasoning_gym")
  gym.create_dataset = lambda *_, size, **__: [None] * size
  gym.factory = types.SimpleNamespace(DATASETS={"chain_sum"})
  monkeypatch.setitem(sys.modules, "reasoning_gym", gym)
  monkeypatch.setitem(sys.modules, "reasoning_gym.factory", gym.factory)
  data = {"path": str(path), "heldout_path": str(heldout), "prompt_column": "problem",
          "answer_column": "answer"}
  for values in ({"name": "recurrence"}, {"name": "tool_arithmetic"}, {"name": "reasoning_gym"},
                 {"name": "dataset", "data": data}):
    task = from_dict({"task": values}).task
    task = dataclasses.replace(registry.TASKS.filled(task), heldout_problems=2)
    source = make_task(task, 0, 2)
    if values["name"] != "reasoning_gym":  # its items are made by the optional package
      problems = source.batch(0)
      source.rewards(problems, [problem.answer for problem in problems])
    if values["name"] == "recurrence":
      source.demonstration(problems[0])
  chatting = byte_tokenizer()
  chatting.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
  for prompt in (config_lib.PromptConfig, config_lib.SetPromptConfig):
    make_prompter(prompt("chat", system="s", suffix="x"), chatting)("p")
    make_prompter(prompt("completion"), chatting)("p")


def call_demonstrations(folder):
  """Reads a file of demonstrations by columns, and one by a mapping."""
  path = folder / "shown.jsonl"
  path.write_text(json.dumps({"problem": "1", "completion": "2", "question": "1",
                              "answer": "#### 2"}) + "\n")
  for mapping in ("auto", "gsm8k"):
    task = {"name": "dataset", "num_terms": None, "worked_share": None,
            "data": {"path": str(path), "mapping": "gsm8k"},
            "heldout_problems": 0}
    warm = {"steps": 1, "path": str(path), "mapping": mapping}
    cfg = tiny(task=task, warm_start=warm)
    demonstrating(cfg.warm_start, cfg.task, cfg.rollout, 0, None)


def call_tools():
  tool = registry.TOOLS.filled(config_lib.ToolConfig("python"))
  with mock.patch.object(PythonSandbox, "_try_one"):  # a busy machine may be late with a program
    make_tool("python", registry.TOOLS.numbers(tool)).close()


def build():
  """Builds the parts of runs with slots, tools, adapters, pruning, packing, Adafactor, a server."""
  engine = {"slots": 8, "chunk": 3, "max_turns": 2, "max_prompt_tokens": 7, "max_new_tokens": 26}
  packed = {"token_budget": 40, "shared_prompts": True}
  for cfg in (tiny(), tiny(parameters={"train": "lora"}, vocabulary={"top_k": 5}),
              tiny(optimizer={"name": "adafactor"}, updates=packed),
              tiny(term={"name": "occ"}, warm_start={"steps": 1, "mtp_coef": 0.2}),
              tiny(server={"url": "http://127.0.0.1:9", "folder": "weights"}),
              tiny(task={"name": "tool_arithmetic", "num_terms": None},
                   model={"vocab_size": 21}, rollout=engine)):
    built = setup.build(setup.resolve(cfg), jax.devices()[:1])
    if cfg.server.url:
      with mock.patch.object(weights, "publish"), mock.patch.object(ServerSampler, "_load"):
        built.sampler.prepare(None)
    built.sampler.close()
    jax.eval_shape(functools.partial(merged, built.learner.model, built.cfg.parameters),
                   jax.random.key(0))


def merged(model, cfg, key):
  return trainable.merge(*trainable.split(model.init(key), cfg, key), cfg)


def train(folder):
  """Runs two iterations with most terms of the loss, and one that gives up on dynamic sampling."""
  held = folder / "sums.jsonl"
  held.write_text(json.dumps({"problem": "1+1=", "answer": "2"}) + "\n")
  sets = {"a": {"path": str(held), "verifier": "exact", "samples": 2, "temperature": 0.5}}
  trainer.run(
      tiny(advantage={"name": "gae"}, kl={"coef": 0.1}, entropy={"coef": 0.1},
           transform={"name": "pipo"}, warm_start={"steps": 1, "batch_size": 8},
           shaping={"overlong_buffer": 2}, evaluation={"every": 1, "samples": 1, "sets": sets},
           rollout={"shared_prefix": False}), folder / "terms")
  trainer.run(tiny(term={"name": "mtp_ce"}, updates={"replay": 1, "replay_rule": "recency"},
                   warm_start={"steps": 1, "batch_size": 8, "mtp_coef": 0.2}), folder / "mtp")
  with pytest.raises(trainer.RUN_ERRORS):
    trainer.run(tiny(dynamic_sampling={"enabled": True, "max_draws": 1},
                     shaping={"mask_truncated": True}), folder / "dynamic")


# --- the tests


def missing(read: set, root=Config) -> list[str]:
  """The keys that nothing has read; those of plugins, which other tests have loaded, are left out.
  """
  keys, of_plugins = set(), set()
  for section, names in config_reads.watched(root):
    (of_plugins if section.__module__.startswith("experiments.") else keys).update(names.values())
  parts = {key.rpartition(".")[0] for key in of_plugins}
  return sorted(keys - of_plugins - parts - read)


def test_every_method_reads_its_numbers():
  with config_reads.recorded() as read:
    call_methods()
  owned = {f"{kind}.{number}" for kind, table in KINDS.items() for name in table.names()
           for number in table[name].defaults}
  assert owned and owned <= read, sorted(owned - read)


def test_reading_to_convert_or_to_check_is_not_a_use():
  with config_reads.recorded() as read:
    cfg = config_lib.check(config_lib.fill(tiny()))
    assert from_dict(config_lib.to_dict(cfg)) == cfg and hash(cfg)
    assert not read, "nothing has used a value"
    assert cfg.rollout.prompts == 8, "the test itself counts as a reader"
  assert read == {"rollout.prompts"}


@dataclasses.dataclass(frozen=True)
class Longer(config_lib.RolloutConfig):
  unused: int = option(0, "nothing")


@dataclasses.dataclass(frozen=True)
class LongerConfig(Config):
  rollout: Longer = Longer()


def test_a_key_that_nothing_reads_is_reported():
  cfg = tiny()
  values = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)}
  rollout = Longer(**dataclasses.asdict(cfg.rollout))
  with config_reads.recorded(LongerConfig) as read:
    longer = LongerConfig(**{**values, "rollout": rollout})
    setup.build(setup.resolve(longer), jax.devices()[:1]).sampler.close()
  left = missing(read, LongerConfig)
  assert "rollout.unused" in left and "rollout.window" not in left


@pytest.mark.slow
def test_every_key_is_read_by_something(tmp_path, monkeypatch):
  with config_reads.recorded() as read:
    call_methods()
    call_models()
    call_tasks(tmp_path, monkeypatch)
    call_demonstrations(tmp_path)
    call_tools()
    build()
    train(tmp_path)
  assert set(config_lib.keys()) <= {k for _, n in config_reads.watched(Config) for k in n.values()}
  assert not missing(read)
