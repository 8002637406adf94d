"""Benchmarks: the same samples whatever the batch, the devices' share or an interruption."""

import dataclasses
import json
from pathlib import Path

import forked
import jax
import numpy as np
import pytest
import tiny

from experiments.tables_lib.benchmark import benchmark
from experiments.tables_lib.benchmark.benchmark import Settings
from experiments.tables_lib.benchmark.loading import described
from jaxrl_llm.config import ConfigError, WriterConfig, from_dict, to_dict
from jaxrl_llm.models import save_pretrained
from jaxrl_llm.runs import evaluate
from jaxrl_llm.runs.run_state import first_state
from jaxrl_llm.store import workdir
from jaxrl_llm.store.checkpoints import Checkpoints
from jaxrl_llm.types import Reward
from jaxrl_llm.wiring import evaluation_sets, setup
from jaxrl_llm.wiring.warm_start import Start


@pytest.fixture(scope="module")
def built():
  config = tiny.get_config()
  config.evaluation.samples = 3
  config.task.heldout_problems = 10
  return setup.build(setup.resolve(from_dict(config)), jax.devices()[:1])


def heldout(built):
  """The held-out problems of the run's task."""
  return evaluation_sets.make_sets(built.cfg, built.task)[0]


@pytest.fixture(scope="module")
def params(built):
  return built.learner.model.init(jax.random.key(3))


@pytest.mark.slow
@pytest.mark.parametrize("run", [
    lambda cfg, *a, **k: evaluate.evaluate(*a, **k).metrics,
    lambda cfg, *a, **k: evaluate.sampled_metrics(*a, 2, cfg.evaluation, **k)
], ids=["greedy", "sampled"])
def test_evaluation_does_not_depend_on_the_piece(run, built, params):
  cfg, _, _, sampler = built
  metrics = run(cfg, heldout(built), sampler, params, piece=10)
  assert metrics and all(np.isfinite(list(metrics.values())))
  assert run(cfg, heldout(built), sampler, params, piece=4) == metrics


class HalfScored:
  """Of three samples one is right, one wrong and one unscored; those of the first all unscored."""

  def __init__(self, task):
    self._task = task

  def __getattr__(self, name):
    return getattr(self._task, name)

  def rewards(self, problems, texts):
    one = [Reward(1.0, True), Reward(0.0, False), Reward(0.0, False, "timeout")]
    return ([Reward(0.0, False, "timeout")] * 3 + one * len(texts))[:len(texts)]


def test_unscored_rows_are_wrong_and_left_out_beside(built, params):
  asked = dataclasses.replace(heldout(built), task=HalfScored(built.task))
  scores = evaluate.sampled_metrics(asked, built.sampler, params, 1, built.cfg.evaluation, piece=10)
  assert scores == pytest.approx({"eval/avg@3": 9 / 30, "eval/avg@3_scored": 0.5,
                                  "eval/pass@3": 0.9, "eval/pass@3_scored": 1.0})
  scores = evaluate.evaluate(asked, built.sampler, params).metrics
  assert scores["eval/accuracy"] == 3 / 10 and scores["eval/accuracy_scored"] == 3 / 5
  assert scores["eval/unscored"] == 5 / 10
  assert {name for name in scores if "component" not in name} | {
      "eval/avg@3", "eval/avg@3_scored", "eval/pass@3", "eval/pass@3_scored"
  } == set(built.cfg.evaluation.metric_names(built.cfg.task.heldout_problems))


# --- benchmarks

SETTINGS = Settings(samples=3, temperature=1.0, batch=10, seed=5)


def run_benchmark(built, params, settings, out, source="a"):
  return benchmark.run([heldout(built)], built.sampler, params, settings, out,
                       described(built.cfg) | {"source": {"workdir": source}})


@pytest.fixture(scope="module")
def finished(built, params, tmp_path_factory):
  """Folder of a finished benchmark."""
  out = tmp_path_factory.mktemp("benchmark") / "out"
  run_benchmark(built, params, SETTINGS, out)
  return out


def sampling_with(built, sample_heldout):
  return built._replace(sampler=dataclasses.replace(built.sampler, sample_heldout=sample_heldout))


def by_problem(out) -> dict[int, dict]:
  return benchmark.read_samples(out / "samples.jsonl")


def test_every_problem_has_its_line(finished, built):
  lines = by_problem(finished)
  assert sorted(lines) == list(range(10))
  assert [lines[i]["prompt"] for i in range(10)] == [p.prompt for p in built.task.heldout(10)]
  for line in lines.values():
    assert len(line["samples"]) == 3
    for sample in line["samples"]:
      assert sample["correct"] == (sample["completion"].rsplit("=", 1)[-1] == line["answer"])
      assert 1 <= sample["length"] <= 6
  assert len({s["completion"] for line in lines.values() for s in line["samples"]}) > 10


def test_samples_do_not_depend_on_batch_or_number(finished, built, params, tmp_path):
  lines = by_problem(finished)
  for batch in (4, 6):  # 6: of whole problems, whose samples share the prompt
    run_benchmark(built, params, dataclasses.replace(SETTINGS, batch=batch), tmp_path / f"{batch}")
    assert by_problem(tmp_path / f"{batch}") == lines
  run_benchmark(built, params, dataclasses.replace(SETTINGS, samples=1), tmp_path / "one")
  assert [line["samples"] for line in by_problem(tmp_path / "one").values()] == [
      lines[i]["samples"][:1] for i in range(10)]
  run_benchmark(built, params, dataclasses.replace(SETTINGS, seed=6), tmp_path / "seed")
  assert by_problem(tmp_path / "seed") != lines


def test_an_interrupted_benchmark_goes_on(finished, built, params, tmp_path):
  calls = []

  def sample(*arguments, **options):
    calls.append(1)
    if len(calls) == 3:
      raise KeyboardInterrupt
    return built.sampler.sample_heldout(*arguments, **options)

  out = tmp_path / "out"
  with pytest.raises(KeyboardInterrupt):
    run_benchmark(sampling_with(built, sample), params, SETTINGS, out)
  assert len(by_problem(out)) == 6  # two batches of 10 rows hold six whole problems
  with open(out / "samples.jsonl", "a") as file:
    file.write('{"index": 9, "sam')
  run_benchmark(built, params, SETTINGS, out)
  assert by_problem(out) == by_problem(finished)
  assert (out / "table.md").read_text() == (finished / "table.md").read_text()
  before = (out / "samples.jsonl").read_bytes()
  # all is there: nothing is sampled
  run_benchmark(sampling_with(built, None), params, SETTINGS, out)
  assert (out / "samples.jsonl").read_bytes() == before


def test_other_settings_are_refused(finished, built, params):
  for settings, source in ((dataclasses.replace(SETTINGS, temperature=0.5), "a"), (SETTINGS, "b")):
    with pytest.raises(
        ConfigError, match=r"other settings:\n  (plan.temperature: 1.0 there|source.workdir: 'a')"):
      run_benchmark(built, params, settings, finished, source)


def test_samples_of_other_parameters_are_refused(finished, built, params):
  """The same path, as when a checkpoint is written anew in its folder."""
  changed = jax.tree.map(np.array, params)
  leaf = jax.tree.leaves(changed)[0]
  leaf.flat[0] += 1e-3
  with pytest.raises(ConfigError, match=r"the parameters have changed under the same name\):\n  "
                     r"source.parameters: '\w{16}' there, '\w{16}' now\nFix: another --out"):
    run_benchmark(built, changed, SETTINGS, finished)


@pytest.mark.parametrize("change", [{"answer": "x"}, {"prompt": "1+2="}, {"id": "other"}])
def test_samples_of_other_problems_are_refused(change, finished, built, params):
  asked = heldout(built)
  problems = [*asked.problems[:4], dataclasses.replace(asked.problems[4], **change),
              *asked.problems[5:]]
  asked = dataclasses.replace(asked, problems=problems)
  with pytest.raises(ConfigError, match=r"problems have changed under the same name\):\n  prob"):
    benchmark.run([asked], built.sampler, params, SETTINGS, finished,
                  described(built.cfg) | {"source": {"workdir": "a"}})
  # A line that was brought from elsewhere is refused by itself.
  path, lines = finished / "samples.jsonl", by_problem(finished)
  benchmark._check_lines(path, lines, heldout(built).problems, 3)
  with pytest.raises(ConfigError, match=f"{next(iter(change))} of problem 4 is .* Fix: remove"):
    benchmark._check_lines(path, lines, problems, 3)
  with pytest.raises(ConfigError, match="samples of problem 0 is 3 there and 4 now"):
    benchmark._check_lines(path, lines, heldout(built).problems, 4)


def test_a_folder_without_digests_is_refused(finished, built, params, tmp_path):
  settings = json.loads((finished / "settings.json").read_text())
  del settings["source"]["parameters"]
  (tmp_path / "settings.json").write_text(json.dumps(settings))
  with pytest.raises(ConfigError, match="holds no digest of the parameters: an older version"):
    run_benchmark(built, params, SETTINGS, tmp_path)


def test_a_damaged_line_is_named(tmp_path):
  (tmp_path / "samples.jsonl").write_text('{"index": 0}\n{"ind\n{"index": 1}\n')
  with pytest.raises(ConfigError, match=r"samples.jsonl, line 2"):
    benchmark.read_samples(tmp_path / "samples.jsonl")


def line(index: int, votes: str, unscored: int = 0) -> dict:
  """A problem whose samples answer with letters: upper case is right, the last may be unscored."""
  scored = len(votes) - unscored
  return {"index": index, "samples": [
      {"correct": vote.isupper() and i < scored, "answer": None if vote == "-" else vote,
       "length": 10 + i, "truncated": vote == "-",
       "unscored_reason": None if i < scored else "timeout"} for i, vote in enumerate(votes)]}


def test_summary_by_hand():
  summary = {name: entry["value"] for name, entry in benchmark.summarize([
      line(0, "Aabb"), line(1, "bbAA"), line(2, "b-A?", unscored=1), line(3, "bbbb", unscored=4)
  ]).items()}
  assert summary == pytest.approx({
      "avg@4": (1 / 4 + 2 / 4 + 1 / 4 + 0) / 4, "pass@1": (1 / 4 + 2 / 4 + 1 / 4 + 0) / 4,
      "pass@2": (1 / 2 + 5 / 6 + 1 / 2 + 0) / 4, "pass@4": 3 / 4,
      "maj@2": (1 + 0 + 0 + 0) / 4, "maj@4": (0 + 0 + 0 + 0) / 4,
      "avg@4 (scored)": (1 / 4 + 2 / 4 + 1 / 3) / 3, "pass@1 (scored)": (1 / 4 + 2 / 4 + 1 / 3) / 3,
      # the third has only three scored samples
      "pass@2 (scored)": (1 / 2 + 5 / 6 + 2 / 3) / 3, "pass@4 (scored)": 1.0,
      "maj@2 (scored)": (1 + 0 + 0) / 3, "maj@4 (scored)": (0 + 0 + 0) / 3,
      "mean length": 11.5, "mean length of correct samples": (10 + 12 + 13 + 12) / 4,
      "truncated share": 1 / 16, "samples without an answer": 1 / 16,
      "distinct answers": (3 + 2 + 3 + 1) / 4,
      "unscored samples": 5, "unscored: timeout": 5, "problems": 4})


def test_time_outs_are_no_reason_for_a_perfect_score():
  summary = benchmark.summarize([line(0, "Abbb", unscored=3)])
  assert summary["avg@4"]["value"] == 1 / 4 and summary["avg@4 (scored)"]["value"] == 1.0
  assert summary["pass@2"]["value"] == 1 / 2 and summary["pass@2 (scored)"]["value"] is None
  assert summary["maj@4"]["value"] == 0.0 and summary["maj@4 (scored)"]["value"] == 1.0
  assert "avg@4 (scored)" not in benchmark.summarize([line(0, "Abbb")])


@pytest.fixture(scope="module")
def run_folder(built, params, tmp_path_factory):
  """A run's folder with the checkpoint of iteration 4."""
  folder = workdir.claim(tmp_path_factory.mktemp("run") / "a", to_dict(built.cfg))
  checkpoints = Checkpoints(folder, built.cfg.checkpoint)
  state = first_state(built.learner, Start(params, None))
  checkpoints.save(4, state.saved())
  checkpoints.close()
  return folder


def test_load_run(run_folder, built, params):
  one = jax.devices()[:1]
  loaded, weights = benchmark.load_run(run_folder, devices=one)
  # Metrics go nowhere while a run is only read.
  assert loaded.cfg == dataclasses.replace(built.cfg, writer=WriterConfig("none"))
  for a, b in zip(jax.tree.leaves(weights), jax.tree.leaves(params), strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
  other = tiny.get_config()
  other.task.num_terms = 3
  other.rollout.max_prompt_tokens, other.rollout.max_new_tokens = 5, 9
  loaded, _ = benchmark.load_run(run_folder, 4, from_dict(other), one)
  assert len(loaded.task.heldout(1)[0].prompt) == 5 and loaded.cfg.rollout.row_length == 14
  with pytest.raises(ConfigError, match="iterations 4"):
    benchmark.load_run(run_folder, 3, devices=one)


def test_load_directory(built, params, finished, tmp_path):
  """An exported policy samples what the run's own parameters do."""
  save_pretrained(tmp_path / "hf", built.learner.model, params, tokenizer=built.task.tokenizer)
  config = tiny.get_config()
  config.task.heldout_problems = 10
  loaded, weights = benchmark.load_directory(tmp_path / "hf", from_dict(config), jax.devices()[:1])
  run_benchmark(loaded, weights, SETTINGS, tmp_path / "out", "hf")
  assert by_problem(tmp_path / "out") == by_problem(finished)


@pytest.mark.slow
def test_command(run_folder, finished, tmp_path):
  """The real command on one device samples what the function does."""
  done = forked.run([
      "experiments/evaluate.py", f"--workdir={run_folder}", f"--out={tmp_path}",
      "--samples=3", "--temperature=1.0", "--batch=10", "--seed=5"
  ], Path(__file__).parents[4])
  assert done.returncode == 0, done.stderr
  assert by_problem(tmp_path) == by_problem(finished)
  assert done.stdout.strip() == (finished / "table.md").read_text().strip()
