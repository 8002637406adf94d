"""Several sets of held-out problems: what each asks, its metrics, and any number of rows."""

import dataclasses
import json
from pathlib import Path

import command
import jax
import numpy as np
import pytest
import tiny

from experiments.report import OBSERVERS
from experiments.tables_lib.benchmark import benchmark
from experiments.tables_lib.benchmark.loading import described
from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, WriterConfig, base_config, from_dict
from jaxrl_llm.runs import evaluate, trainer
from jaxrl_llm.tasks import make_task
from jaxrl_llm.tasks.demonstrations import demonstrating
from jaxrl_llm.tasks.rewards import rewarded
from jaxrl_llm.wiring import evaluation_sets, setup


def sums(path: Path, numbers, **more) -> str:
  """Writes problems of tiny's notation."""
  rows = [{"problem": f"{n}+{n % 3}=", "answer": str((n + n % 3) % 10), **more} for n in numbers]
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
  folder = tmp_path_factory.mktemp("sets")
  return {"a": sums(folder / "a.jsonl", range(5)), "b": sums(folder / "b.jsonl", range(2, 9)),
          "long": sums(folder / "long.jsonl", (1, 2, 3, 12, 123, 4))}


def config(paths, *, heldout=5, **keys):
  """tiny with the sets a (two samples of its own) and b (its own prompt), of equal sizes."""
  settings = tiny.get_config()
  settings.task.heldout_problems = heldout
  settings.evaluation.sets.update(
      a={"path": paths["a"], "verifier": "numeric", "samples": 2, "temperature": 0.5},
      b={"path": paths["b"], "verifier": "exact", "problems": 5,
         "prompt": {"style": "completion", "template": "{problem}1"}})
  settings.rollout.max_prompt_tokens = 5
  for key in keys:
    if key.startswith("evaluation.sets."):
      settings.evaluation.sets[key.split(".")[2]]  # enters the name
  settings.update_from_flattened_dict(keys)
  return from_dict(settings)


@pytest.fixture(scope="module")
def built(paths):
  return setup.build(setup.resolve(config(paths)), jax.devices()[:1])


@pytest.fixture(scope="module")
def sets(built):
  return evaluation_sets.make_sets(built.cfg, built.task)


def test_each_set_has_its_file_prompt_verifier_and_samples(built, sets):
  heldout, a, b = sets
  assert [one.name for one in sets] == ["", "a", "b"]
  assert heldout.problems == built.task.heldout(5) and heldout.task is built.task
  assert [p.prompt for p in a.problems] == ["0+0=", "1+1=", "2+2=", "3+0=", "4+1="]
  assert [p.prompt for p in b.problems] == ["2+2=", "3+0=", "4+1=", "5+2=", "6+0="], "problems = 5"
  assert b.task.render(b.problems[0]) == built.task.tokenizer.encode("2+2=1")
  assert a.task.render(a.problems[0]) == built.task.tokenizer.encode("0+0=")
  assert (a.task.verifier, b.task.verifier) == ("numeric", "exact")
  assert (a.samples, a.temperature, b.samples) == (2, 0.5, None)


def test_the_temperature_of_all_sets_needs_samples_of_one_only(paths):
  cfg = setup.resolve(config(paths, **{"evaluation.temperature": 0.7}))
  assert cfg.evaluation.samples == 0 and cfg.evaluation.temperature == 0.7
  more = {"evaluation.samples": 1, "evaluation.sets.b.temperature": 2.0}
  cfg = setup.resolve(config(paths, **more))
  assert dict(cfg.evaluation.sets)["b"].samples is None


@pytest.mark.slow
def test_metrics_are_named_after_the_set(built, sets):
  params = built.learner.model.init(jax.random.key(3))
  metrics = {}
  for one in sets:
    metrics |= evaluate.evaluate(one, built.sampler, params).metrics
    metrics |= evaluate.sampled_metrics(one, built.sampler, params, 1, built.cfg.evaluation)
  of_verifiers = {name for name in metrics if name.endswith(("/costly", "/unreadable"))}
  assert set(metrics) - of_verifiers == set(
      built.cfg.evaluation.metric_names(built.cfg.task.heldout_problems))
  assert {"eval/accuracy", "eval/a/accuracy", "eval/b/accuracy_scored"} <= set(metrics)
  assert "eval/a/avg@2" in metrics
  assert not {"eval/avg@2", "eval/b/avg@2"} & set(metrics)
  assert setup.resolve(dataclasses.replace(built.cfg, checkpoint=dataclasses.replace(
      built.cfg.checkpoint, best="eval/a/avg@2")))


@pytest.mark.slow
def test_a_set_alone_has_the_metrics_that_it_has_among_others(built, sets, paths):
  """What is sampled for a set depends on its name, but on no other set."""
  params = built.learner.model.init(jax.random.key(3))
  alone = config(paths, **{"evaluation.sets.b.problems": 0, "checkpoint.best": "none"}, heldout=0)
  cfg = setup.resolve(alone)
  one, = evaluation_sets.make_sets(cfg, built.task)
  assert (evaluate.sampled_metrics(one, built.sampler, params, 1, cfg.evaluation)
          == evaluate.sampled_metrics(sets[1], built.sampler, params, 1, built.cfg.evaluation)
          != {})


REFUSED = [
    ({"evaluation.sets.a.path": "none.jsonl"},
     r"evaluation\.sets\.a\.path = 'none.jsonl': no such file"),
    ({"evaluation.sets.a.path": ""}, r"evaluation\.sets\.a\.path is empty\. Fix: evaluation\.sets"),
    ({"evaluation.sets.a.problems": 6},
     r"evaluation\.sets\.a\.problems = 6: .* has 5\. Fix: evaluation\.sets\.a\.problems <= 5"),
    ({"evaluation.sets.a.verifier": "exat"},
     r"evaluation\.sets\.a\.verifier = 'exat': .* Did you mean 'exact'"),
    ({"evaluation.sets.b.prompt.template": "x"},
     r"evaluation\.sets\.b\.prompt\.template = 'x': no \{problem\}"),
    ({"evaluation.sets.component.path": "LONG"}, "component: this name is taken"),
    ({"evaluation.sets.a.path": "LONG"},
     r"max_prompt_tokens = 5: 1 prompts of evaluation\.sets\.a\.path = .* longest has 6 tokens\. "
     r"Fix: rollout\.max_prompt_tokens >= 6, or evaluation\.sets\.a\.too_long=drop"),
    ({"evaluation.sets.b.temperature": 0.5},
     r"sets\.b\.temperature = 0\.5: no completion of the set is sampled\. Fix: .*sets\.b\.samples"),
]


@pytest.mark.parametrize("keys, message", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_mistakes_name_the_key_of_the_set(keys, message, built, paths):
  keys = {key: paths["long"] if value == "LONG" else value for key, value in keys.items()}
  with pytest.raises(ConfigError, match=message) as error:
    evaluation_sets.make_sets(setup.resolve(config(paths, **keys)), built.task)
  assert "\n" not in str(error.value) and "task.data" not in str(error.value)


@pytest.mark.slow
def test_long_prompts_are_left_out_where_that_is_asked_for(built, paths):
  cfg = setup.resolve(config(paths, **{"evaluation.sets.a.path": paths["long"],
                                       "evaluation.sets.a.too_long": "drop"}))
  asked = evaluation_sets.make_sets(cfg, built.task)[1]
  assert len(asked.problems) == 5 and asked.too_long == 1
  params = built.learner.model.init(jax.random.key(3))
  assert evaluate.evaluate(asked, built.sampler, params).metrics["eval/a/too_long"] == 1


def test_all_problems_of_a_task_without_an_end_are_refused():
  cfg = tiny.get_config()
  cfg.task.heldout_problems = -1
  with pytest.raises(ConfigError, match=r"task.heldout_problems = -1 stands for all .* a number"):
    setup.build(setup.resolve(from_dict(cfg)), jax.devices()[:1])


@pytest.mark.slow
def test_any_number_of_rows_on_any_number_of_devices(built, paths, tmp_path):
  """Five problems, and samples of seven, by the engine on eight devices and without it on one."""
  params = built.learner.model.init(jax.random.key(3))
  cfg = setup.resolve(config(paths, heldout=7, **{"rollout.slots": 12}))
  many = setup.build(cfg, training=False)
  assert many.learner.mesh.size == 8 and many.cfg.rollout.slots == 16
  spread = jax.device_put(params, parallel.replicated(many.learner.mesh))
  settings = benchmark.Settings(samples=3, temperature=1.0, batch=10)
  outcomes = []
  for parts, tree in ((built, params), (many, spread)):
    here = evaluation_sets.make_sets(cfg, parts.task)
    greedy = [evaluate.evaluate(one, parts.sampler, tree) for one in here]
    out = tmp_path / str(len(outcomes))
    benchmark.run(here, parts.sampler, tree, settings, out, described(cfg) | {"source": {}})
    outcomes.append((here, greedy, out))
  (here, one, first), (_, other, second) = outcomes
  for asked, x, y in zip(here, one, other, strict=True):
    np.testing.assert_array_equal(x.rollout.tokens, y.rollout.tokens)
    assert x.metrics == y.metrics and len(x.texts) == len(asked.problems)
    assert (benchmark.read_samples(first / asked.name / "samples.jsonl")
            == benchmark.read_samples(second / asked.name / "samples.jsonl"))


@pytest.mark.slow
def test_a_run_trains_without_problems_of_its_own_and_is_evaluated_again(paths, tmp_path):
  cfg = dataclasses.replace(
      config(paths, heldout=0, **{"checkpoint.best": "eval/a/accuracy", "iterations": 2,
                                  "warm_start.steps": 5, "evaluation.every": 1}),
      writer=WriterConfig("none"))
  trainer.run(cfg, tmp_path / "run", OBSERVERS)
  lines = command.metrics_lines(tmp_path / "run")
  assert all("eval/a/accuracy" in line and "eval/accuracy" not in line for line in lines)
  assert list((tmp_path / "run/best").iterdir())
  assert "accuracy on a" in (tmp_path / "run/report.html").read_text()
  done = command.succeed(command.launch(
      "evaluate", f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}", "--samples=3",
      "--checkpoint=best"))
  for name, plan in {"a": (2, 0.5), "b": (3, 0.6)}.items():
    settings = json.loads((tmp_path / "out" / name / "settings.json").read_text())
    assert (settings["plan"]["samples"], settings["plan"]["temperature"]) == plan
    assert (tmp_path / "out" / name / "table.md").read_text() in done.stdout
  joint = (tmp_path / "out/joint.md").read_text()
  assert joint in done.stdout and not (tmp_path / "out/samples.jsonl").exists()
  assert [line.split("|")[1].strip() for line in joint.splitlines()[2:]] == ["a", "b"]


@pytest.mark.slow
def test_a_benchmark_is_evaluated_without_a_training_file(built, paths, tmp_path):
  from jaxrl_llm.models import save_pretrained

  params = built.learner.model.init(jax.random.key(3))
  save_pretrained(tmp_path / "hf", built.learner.model, params, tokenizer=built.task.tokenizer)
  flags = ["task.name=dataset", "task.num_terms=None", "task.worked_share=None",
           f"task.data.heldout_path={paths['a']}", "task.data.verifier=numeric",
           "task.heldout_problems=-1", f"evaluation.sets.other.path={paths['b']}",
           "evaluation.sets.other.verifier=exact", "evaluation.sets.other.samples=0"]
  done = command.succeed(command.launch(
      "evaluate", f"--pretrained={tmp_path / 'hf'}", "--config=tests/runs/tiny.py",
      f"--out={tmp_path / 'out'}", "--samples=2", *(f"--config.{flag}" for flag in flags)))
  assert len(benchmark.read_samples(tmp_path / "out/samples.jsonl")) == 5
  other = benchmark.read_samples(tmp_path / "out/other/samples.jsonl")
  assert len(other) == 7 and all(len(line["samples"]) == 1 for line in other.values())
  assert "avg@1" in done.stdout and "avg@2" in done.stdout


def test_what_a_set_asks_is_neither_trained_on_nor_imitated(tmp_path, caplog):
  rows = [{"problem": f"{n}+{n % 3}=", "answer": str(n + n % 3)} for n in range(9)]
  for name, count in (("data", 9), ("shown", 9), ("bench", 4)):
    lines = [row | {"completion": row["answer"]} for row in rows[:count]]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / f"{name}.jsonl").write_text(content)
  files = {name: str(tmp_path / f"{name}.jsonl") for name in ("data", "shown", "bench")}
  base = base_config()
  base.rollout.update(max_prompt_tokens=8, max_new_tokens=8)
  base.task.update(name="dataset", heldout_problems=1)
  base.task.data.update(path=files["data"], verifier="numeric")
  base.warm_start.update(steps=1, path=files["shown"])
  base.evaluation.sets.update(bench={"path": files["bench"], "verifier": "numeric", "problems": 3})
  cfg = setup.resolve(from_dict(base))
  task = rewarded(make_task(cfg.task, 0, 2), cfg.reward)
  shown = demonstrating(cfg.warm_start, cfg.task, cfg.rollout, 0, None)
  sets = evaluation_sets.make_sets(cfg, task)
  texts = [row["problem"] for row in rows]
  assert [p.prompt for p in task.training_problems] == texts[:-1], "what is rejected: no comparison"
  for each in (task, shown):
    evaluation_sets.leave_out(each, sets)
    assert [p.prompt for p in each.training_problems] == texts[3:-1], "the first 3 are asked"
    assert {p.prompt for p in each.batch(0) + each.batch(1)} <= set(texts[3:-1])
  lines = [r.getMessage() for r in caplog.records if "evaluation.sets.bench" in r.getMessage()]
  assert ["3 of 8 problems" in line for line in lines] == [True, True]
  assert lines[1].startswith("warm_start.path = ")
