"""Several teachers: each scores the completions of its own problems, in any order and any split."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smallest
import tiny_batch

from jaxrl_llm.config import ConfigError
from jaxrl_llm.models import Model, save_pretrained
from jaxrl_llm.runs.carried import abstract_scores
from jaxrl_llm.tasks.tokenizer import byte_tokenizer
from jaxrl_llm.training.columns import CURRENT, TEACHER, TEACHER_COLUMN
from jaxrl_llm.types import Problem
from jaxrl_llm.wiring import inputs, setup
from jaxrl_llm.wiring.scoring import score_rollout

GROUPS, SIZE = tiny_batch.ROWS // 2, 2
NAMES = ("code", "math", "code", "code")  # teachers of the groups
ROWS = ({"q": "1+1", "a": "2", "kind": "math"}, {"q": "reverse ab", "a": "ba", "kind": "code"},
        {"q": "2+2", "a": "4", "kind": "math"}, {"q": "reverse cd", "a": "dc", "kind": "code"})


def resolved(path, pretrained, **keys):
  return smallest.resolved(**{
      "model.vocab_size": 260, "task.name": "dataset", "task.num_terms": None,
      "task.worked_share": None, "task.heldout_problems": 0, "task.data.path": str(path),
      "task.data.prompt_column": "q", "task.data.answer_column": "a",
      "task.data.teacher_column": "kind", "task.data.verifier": "exact",
      "rollout.prompts": GROUPS, "rollout.group_size": SIZE, "rollout.max_prompt_tokens": 12,
      "rollout.max_new_tokens": tiny_batch.LENGTH - 2, "rollout.window": tiny_batch.LENGTH - 2,
      "advantage.name": "reverse_kl", "updates.optimizer_batches": 1,
      "teacher.pretrained": pretrained, "mesh.data": 1} | keys)


def learner(path, pretrained, **keys):
  return setup.build_learner(resolved(path, pretrained, **keys), jax.devices()[:1])[2]


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
  path = tmp_path_factory.mktemp("problems") / "rows.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
  return path


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, problems):
  """{name: folder} of teachers of different widths and tastes."""
  folder, out = tmp_path_factory.mktemp("teachers"), {}
  shapes = resolved(problems, "", **{"advantage.name": "grpo",
                                     "task.data.teacher_column": ""}).model
  for seed, (name, width) in enumerate({"math": 8, "code": 16}.items()):
    model = Model(dataclasses.replace(shapes, width=width))
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda x, rng=rng: rng.normal(size=x.shape).astype(x.dtype),
                          model.shapes())
    save_pretrained(folder / name, model, params, tokenizer=byte_tokenizer())
    out[name] = str(folder / name)
  return out


def pretrained_of(checkpoints) -> str:
  return ",".join(f"{name}={folder}" for name, folder in checkpoints.items())


def column(policy, names, groups=range(GROUPS)) -> np.ndarray:
  """[B, L]: the teachers' log-probs of the batch's groups, in the order `groups`."""
  rows = np.concatenate([np.arange(SIZE) + SIZE * group for group in groups])
  rollout = jax.tree.map(lambda x: x[rows], tiny_batch.rollout())
  teachers = policy.scoring.teachers.of([Problem("", "", teacher=names[group]) for group in groups])
  scores = score_rollout(policy.scoring, {CURRENT: policy.model.init(jax.random.key(9)),
                                          TEACHER: teachers}, rollout)
  return np.asarray(scores.columns[TEACHER_COLUMN])


def check_own_teacher(log_probs, alone, names) -> None:
  """Each row has the log-probs of its own teacher; `alone`: those of each, for all rows."""
  for row, name in enumerate(np.repeat(names, SIZE)):
    np.testing.assert_allclose(log_probs[row], alone[name][row], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_row_is_scored_by_its_own_teacher(problems, checkpoints):
  alone = {name: column(learner(problems, folder, **{"task.data.teacher_column": ""}),
                        ("",) * GROUPS) for name, folder in checkpoints.items()}
  assert np.abs(alone["math"] - alone["code"]).max() > 0.1
  policy = learner(problems, pretrained_of(checkpoints))
  check_own_teacher(column(policy, NAMES), alone, NAMES)
  check_own_teacher(column(policy, ("code",) * GROUPS), alone, ("code",) * GROUPS)
  for wrong in (alone["math"], alone["code"], alone["math"] + alone["code"]):
    with pytest.raises(AssertionError):
      check_own_teacher(wrong, alone, NAMES)


def check_split_and_order(score) -> None:
  """score(micro_batches, groups) -> [B, L] with the groups in that order."""
  order = (2, 0, 3, 1)
  base = score(1, range(GROUPS)).reshape(GROUPS, -1)
  np.testing.assert_allclose(score(1, order).reshape(GROUPS, -1), base[list(order)], rtol=1e-5,
                             atol=1e-6)
  np.testing.assert_allclose(score(4, range(GROUPS)).reshape(GROUPS, -1), base, rtol=1e-5,
                             atol=1e-6)


@pytest.mark.slow
def test_neither_the_split_nor_the_order_of_rows_counts(problems, checkpoints):
  policy = functools.cache(lambda pieces: learner(problems, pretrained_of(checkpoints),
                                                  **{"updates.micro_batches": pieces}))
  check_split_and_order(lambda pieces, groups: column(policy(pieces), NAMES, groups))
  with pytest.raises(AssertionError):  # the teacher by place in the batch
    check_split_and_order(lambda pieces, groups: column(
        policy(pieces), dict(zip(groups, NAMES, strict=True)), groups))
  with pytest.raises(AssertionError):  # one teacher for a micro-batch, that of its first row
    check_split_and_order(lambda pieces, groups: column(
        policy(pieces), [NAMES[group * pieces // GROUPS * GROUPS // pieces]
                       for group in range(GROUPS)], groups))


@pytest.mark.slow
def test_shapes_are_those_of_the_teachers(problems, checkpoints):
  """What update transforms carry is shaped without a batch."""
  for pretrained, column_name in ((checkpoints["code"], ""), (pretrained_of(checkpoints), "kind")):
    policy = learner(problems, pretrained, **{"task.data.teacher_column": column_name})
    scores = abstract_scores(policy.scoring, policy.model.shapes(), tiny_batch.rollout())
    log_probs = scores.columns[TEACHER_COLUMN]
    assert (log_probs.shape, log_probs.dtype) == ((tiny_batch.ROWS, tiny_batch.LENGTH), jnp.float32)


def test_the_problems_of_a_file_name_their_teachers(problems, checkpoints):
  cfg = resolved(problems, pretrained_of(checkpoints))
  _, task, policy = setup.build_learner(cfg, jax.devices()[:1])
  teachers = policy.scoring.teachers.of(task.batch(1))
  names = [row["kind"] for problem in task.batch(1) for row in ROWS if row["q"] == problem.prompt]
  np.testing.assert_array_equal(teachers.teacher_index,
                                np.repeat([name == "code" for name in names], SIZE))
  assert policy.scoring.teachers.of([Problem("", "", teacher="code")]).params[0] is None, \
      "a teacher that is not asked is not read"
  assert {"teacher.pretrained.math", "teacher.pretrained.code"} <= inputs.notes(cfg).keys()


@pytest.mark.parametrize("pretrained, text", [
    ("math=a,b", r"has the entry 'b'; several teachers are NAME=CHECKPOINT"),
    ("math=a,code=", r"has the entry 'code='; several"),
    ("math=a,math=b", r"has the name 'math' twice; several"),
])
def test_wrong_names_are_refused(problems, pretrained, text):
  with pytest.raises(ConfigError, match=text):
    resolved(problems, pretrained)


def test_rows_without_a_teacher_are_refused(problems, checkpoints, tmp_path):
  path, pretrained = tmp_path / "rows.jsonl", pretrained_of(checkpoints)
  path.write_text("".join(json.dumps(row) + "\n" for row in (*ROWS, {**ROWS[0], "q": "5",
                                                                     "kind": "physics"})))
  with pytest.raises(ConfigError, match=r"problem '5' has the teacher 'physics'; allowed are math, "
                     r"code, those of teacher\.pretrained\. Fix: "):
    learner(path, pretrained)
  with pytest.raises(ConfigError, match="problem '1' has the teacher ''; allowed are math, code"):
    learner(problems, pretrained, **{"task.data.teacher_column": ""})
  with pytest.raises(ConfigError, match=r"rows\.jsonl.*1: no column 'topic'.*teacher_column"):
    learner(problems, pretrained, **{"task.data.teacher_column": "topic"})


def test_every_teacher_has_the_policy_s_tokens(problems, checkpoints, tmp_path):
  model = Model(resolved(problems, checkpoints["math"],
                         **{"task.data.teacher_column": ""}).model)
  save_pretrained(tmp_path / "other", model, model.init(jax.random.key(0)),
                  tokenizer=byte_tokenizer())
  config = json.loads((tmp_path / "other" / "config.json").read_text())
  (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"vocab_size": 200}))
  with pytest.raises(ConfigError, match=r"other'.*vocab_size 200, and the tokenizer 2.. ids"):
    learner(problems, f"math={checkpoints['math']},code={tmp_path / 'other'}")
