"""Every metric that a run logs has an entry, and every entry has a run that logs it."""

import ast
import fnmatch
import json
import re
import sys
from pathlib import Path

import pytest

import jaxrl_llm
from experiments.report.run_folder import read_run
from jaxrl_llm.config import base_config, from_dict
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register
from jaxrl_llm.objective.estimators.reinforce import reinforce
from jaxrl_llm.ops import masked
from jaxrl_llm.reporting import glossary
from jaxrl_llm.runs import trainer
from jaxrl_llm.tasks import rewards

PACKAGE = Path(jaxrl_llm.__file__).parent
sys.path += [str(Path(__file__).parents[1] / "runs"),
             str(Path(__file__).parents[1] / "rollouts" / "server")]
# In no metrics line: the first is shown beside the bar of the warm start, the others belong to
# trainings that are no runs.
SUPERVISED = {"loss/sft", "loss/mtp", "loss/value", "loss/language", "loss/preference"}

# Logged beside a teacher, whose checkpoint tests/runs/test_teacher_run.py makes.
OF_A_TEACHER = {"distill/divergence"}


def without_entry(names) -> list[str]:
  return sorted(name for name in names if glossary.entry(name) is None)


def without_run(names) -> list[str]:
  return [item.name for item in glossary.GLOSSARY if not fnmatch.filter(names, item.name)]


def written_in(source: str) -> set[str]:
  """Texts of a file that have the form of a metric's name, with a first part of the glossary."""
  first = "|".join(sorted({item.name.split("/")[0] for item in glossary.all_entries()}))
  texts = {node.value for node in ast.walk(ast.parse(source))
           if isinstance(node, ast.Constant) and isinstance(node.value, str)}
  return {text for text in texts if re.fullmatch(f"({first})/[a-z_/]*[a-z_]", text)}


def test_names_in_the_source_have_an_entry():
  """A quick version of the run below: it misses names that are put together."""
  names = set()
  for room in ("runs", "training", "objective", "rollouts"):
    for path in (PACKAGE / room).rglob("*.py"):
      names |= written_in(path.read_text())
  assert {"eval/accuracy", "time/tools", "moe/load"} <= names
  names -= SUPERVISED | {"rollout/", "time/"}
  entries = {item.name for item in glossary.all_entries()}
  assert [name for name in without_entry(names)
          if not any(item.startswith(f"{name}/") or item == f"{name}/p*" for item in entries)] == []
  assert written_in('x = {"reward/unknown": 1, "text": 2}') == {"reward/unknown"}
  assert without_entry({"reward/unknown"}) == ["reward/unknown"]


def test_entries_are_unique_and_whole():
  names = [item.name for item in glossary.all_entries()]
  assert len(set(names)) == len(names)
  assert all(item.unit and item.meaning for item in glossary.all_entries())


def test_a_plugin_brings_meanings(monkeypatch):
  monkeypatch.setattr(glossary, "_OF_PLUGINS", {})
  text = "own/share | share | of rows\nestimator/own | 1 | more than the package says of it"
  glossary.register(text)
  glossary.register(text)  # as where its module is loaded again
  assert glossary.entry("own/share") == ("own/share", "share", "of rows")
  assert glossary.entry("estimator/own").meaning.startswith("more than")
  assert "| own/share" in glossary.table("own/")
  for wrong, message in (("own/share | share", "unit"), ("own/share | 1 | another", "already"),
                         ("eval/accuracy | 1 | another", "already")):
    with pytest.raises(ValueError, match=message):
      glossary.register(wrong)


def test_the_command_prints_a_part(capsys):
  glossary.main(["kl/"])
  lines = capsys.readouterr().out.splitlines()[2:]
  assert len(lines) == 4 and all(line.startswith("| kl/") for line in lines)
  with pytest.raises(SystemExit, match="no metric begins with 'nothing'"):
    glossary.main(["nothing"])


# --- runs that exercise every feature


def tiny(iterations=3, **sections):
  import tiny as tiny_config

  config = tiny_config.get_config("grpo")
  config.iterations = iterations
  config.rollout.update(prompts=8, group_size=4)
  config.evaluation.every = 2
  for name, values in sections.items():
    config[name].update(values)
  return from_dict(config)


def with_a_critic(folder):
  """With sampled evaluations, an evaluation set of which a prompt is too long, a KL term, groups
  that are drawn again, and an estimator with a metric of its own.
  """
  rows = [{"problem": "1+1=", "answer": "2"}, {"problem": "100+1=", "answer": "1"}]
  (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  some = {"path": str(folder / "x.jsonl"), "verifier": "exact", "too_long": "drop"}

  @register("owned", anchor="recomputed")
  def owned(log_probs, anchor_log_probs, advantages, mask, cfg):
    out = reinforce(log_probs, anchor_log_probs, advantages, mask, cfg)
    return common.output(out.per_token_loss,
                         out.metrics | {"estimator/size": masked.mean(abs(log_probs), mask)})

  return tiny(advantage={"name": "gae"}, kl={"coef": 0.1}, updates={"replay": 1},
              evaluation={"samples": 2, "sets": {"some": some}}, estimator={"name": "owned"})


def with_a_tool(_):
  import tiny_tools

  config = tiny_tools.get_config()
  config.iterations, config.plugins = 1, ()
  config.warm_start.steps = 20
  return from_dict(config)


def with_redraws(_):
  """With experts that are replayed, a pruned vocabulary, rollouts that are sampled ahead, and a
  second reward; by pass@k.
  """
  @rewards.register("brief")
  def brief(problem, completion, cfg):
    return {"brief": (float(len(completion) < 4), 0.1)}

  return tiny(2, dynamic_sampling={"enabled": True, "max_draws": 100},
              model={"num_experts": 4, "experts_per_token": 2}, vocabulary={"min_p": 0.01},
              rollout={"routing": True, "prompts": 8, "group_size": 4},
              updates={"staleness": 1, "overlap": True}, mesh={"rollout": 4},
              estimator={"name": "m2po"}, advantage={"name": "pass_k"},
              reward={"name": "task,brief"}, kl={"coef": 0.1, "place": "reward"},
              transform={"name": "ess,entropy_share"})


def with_a_file(folder):
  """With problems whose verifier says how it decided, and completions that go on."""
  rows = [{"problem": f"{i}+1=", "answer": str(i + 1)} for i in range(8)]
  (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  config = base_config()
  config.iterations = 1
  config.model.update(vocab_size=258, width=16, num_layers=1, num_heads=1, num_kv_heads=1,
                      head_dim=8, mlp_width=16)
  config.task.update(name="dataset", heldout_problems=2)
  config.task.data.update(path=str(folder / "sums.jsonl"), verifier="numeric")
  config.rollout.update(prompts=8, group_size=2, max_prompt_tokens=4, max_new_tokens=4, window=4)
  config.rollout.slots = 8
  config.updates.update(optimizer_batches=2, in_flight=True)
  return from_dict(config)


def with_a_server(folder):
  """With rollouts from a server, which lives as long as the test."""
  import engine_server

  server = engine_server.EngineServer()
  return tiny(1, server={"url": server.url, "folder": str(folder / "weights")})


RUNS = {"critic": with_a_critic, "tool": with_a_tool, "redraws": with_redraws, "file": with_a_file,
        "server": with_a_server}


def logged(cfg, folder) -> set[str]:
  trainer.run(cfg, folder)
  return {name for line in read_run(folder).metrics for name in line} - {"iteration"}


@pytest.mark.slow
def test_a_run_of_every_feature_logs_what_the_glossary_explains(tmp_path):
  names = OF_A_TEACHER.union(*(logged(make(tmp_path), tmp_path / name)
                               for name, make in RUNS.items()))
  assert without_entry(names) == []
  assert without_run(names) == []
  # What the test rejects: a metric without an entry, an entry without a metric.
  assert without_entry(names | {"reward/new"}) == ["reward/new"]
  assert without_run({name for name in names if not name.startswith("critic/")}) == [
      "critic/loss", "critic/value", "critic/return"]
