"""The teachers of a run: checkpoints whose log-probs of the policy's completions it reads."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int
from transformers import PreTrainedTokenizerBase

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, ModelConfig, TeacherConfig
from jaxrl_llm.models import CheckpointError, Model, hf
from jaxrl_llm.parallel import processes
from jaxrl_llm.tasks.tokenizer import load_tokenizer
from jaxrl_llm.types import Params, Problem, Task


@dataclasses.dataclass(frozen=True)
class Teacher:
  """A network and where its parameters are.

  Attributes:
    pretrained: the checkpoint.
    model: its network, computing as the policy's does.
    mesh: the devices that score.
  """

  pretrained: str
  model: Model
  mesh: Mesh

  @functools.cached_property
  def params(self) -> Params:
    """Returns the parameters, in the checkpoint's dtype; they are read once."""
    model = self.model.config
    _, params, _ = hf.load_pretrained(
        self.pretrained, mesh=self.mesh, scan_layers=model.scan_layers,
        attention=model.attention, compute_dtype=model.compute_dtype)
    return params


class ByRow(NamedTuple):
  """Parameters of several teachers, and the teacher of each completion.

  Attributes:
    params: of each teacher; None: it is the teacher of no row.
    teacher_index: [B] int32, index into `params`.
  """

  params: tuple[Params | None, ...]
  teacher_index: Int[Array, " B"]


@dataclasses.dataclass(frozen=True)
class Teachers:
  """One teacher for all problems, or several by name; then each problem names its teacher.

  Parameters of teachers that were used once stay on the devices.

  Attributes:
    by_name: the only one has the name "".
    group_size: rows of a problem.
    mesh: the devices that score.
  """

  by_name: dict[str, Teacher]
  group_size: int
  mesh: Mesh

  @property
  def models(self) -> list[Model]:
    """Returns the networks, in the order of `ByRow.params`."""
    return [teacher.model for teacher in self.by_name.values()]

  def of(self, problems: list[Problem]) -> Params | ByRow:
    """Returns what the columns of a batch are made with.

    Args:
      problems: one per group of this process.

    Raises:
      ConfigError: a problem names none of several teachers.
    """
    teachers = list(self.by_name.values())
    if len(teachers) == 1:
      return teachers[0].params
    teacher_index = np.repeat(np.array([self.index(problem) for problem in problems], np.int32),
                       self.group_size)
    indices = set().union(*processes.exchange("teachers", set(teacher_index.tolist())))
    return ByRow(tuple(teacher.params if i in indices else None
                       for i, teacher in enumerate(teachers)),
                 parallel.to_global(teacher_index, self.mesh))

  def shapes(self, rows: int) -> Params | ByRow:
    """Returns what `of` does for `rows` rows that have all teachers, as shapes and dtypes."""
    shapes = tuple(model.shapes() for model in self.models)
    if len(shapes) == 1:
      return shapes[0]
    return ByRow(shapes, jax.ShapeDtypeStruct((rows,), jnp.int32))

  def index(self, problem: Problem) -> int:
    """Returns the place of a problem's teacher among several.

    Raises:
      ConfigError: it names none of them.
    """
    names = list(self.by_name)
    if problem.teacher not in names:
      raise ConfigError(
          f"problem {problem.id or problem.prompt[:60]!r} has the teacher {problem.teacher!r}; "
          f"allowed are {', '.join(names)}, those of teacher.pretrained. Fix: "
          "task.data.teacher_column=<a column that names them>, that row, or a teacher of that "
          "name.")
    return names.index(problem.teacher)

  def check(self, task: Task) -> None:
    """Refuses problems without a teacher: checks all problems of a file, otherwise the first batch.

    Raises:
      ConfigError: as `index`.
    """
    if len(self.by_name) > 1:
      listed = getattr(task, "training_problems", None)
      for problem in task.batch(1) if listed is None else listed:
        self.index(problem)


def make_teachers(cfg: TeacherConfig, policy: ModelConfig, group_size: int,
                  tokenizer: PreTrainedTokenizerBase, mesh: Mesh) -> Teachers | None:
  """Returns the teachers of a run; None without a checkpoint. Their weights are not read yet.

  Args:
    policy: how its network is computed: attention, scanned layers, dtype.
    tokenizer: of the policy, whose tokens each teacher must have, too.

  Raises:
    ConfigError: a checkpoint cannot be read, or its tokenizer is another one.
  """
  by_name = {name: _make_teacher(pretrained, policy, tokenizer, mesh)
             for name, pretrained in cfg.by_name.items()}
  return Teachers(by_name, group_size, mesh) if by_name else None


def _make_teacher(pretrained: str, policy: ModelConfig, tokenizer: PreTrainedTokenizerBase,
                  mesh: Mesh) -> Teacher:
  try:
    directory = hf.base_directory(pretrained)
    shapes = hf.read_config(directory)
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"teacher.pretrained = {pretrained!r}: {error}") from error
  vocabulary = tokenizer.get_vocab()
  _check_tokens(pretrained, vocabulary, load_tokenizer(directory).get_vocab())
  _check_head(pretrained, max(vocabulary.values()) + 1, shapes.vocab_size)
  model = dataclasses.replace(shapes, scan_layers=policy.scan_layers, attention=policy.attention,
                              compute_dtype=policy.compute_dtype)
  return Teacher(pretrained, Model(model, parallel.Layout(mesh)), mesh)


def _check_tokens(pretrained: str, policy: dict[str, int], teacher: dict[str, int]) -> None:
  """Refuses a teacher for which an id of the policy is another token, or none."""
  differing = sorted(token for token in policy if teacher.get(token) != policy[token])
  if differing:
    token = differing[0]
    teacher_id = teacher.get(token, "no id")
    raise ConfigError(
        f"teacher.pretrained = {pretrained!r}: its tokenizer is not the policy's: of "
        f"{len(policy)} tokens {len(differing)} differ, {token!r} is {policy[token]} for the "
        f"policy and {teacher_id} for the teacher. Fix: a teacher with the policy's tokenizer.")


def _check_head(pretrained: str, ids: int, vocab_size: int) -> None:
  """Refuses a teacher whose network has fewer ids than the tokenizer; more are padding."""
  if vocab_size < ids:
    raise ConfigError(
        f"teacher.pretrained = {pretrained!r}: its network has vocab_size {vocab_size}, and the "
        f"tokenizer {ids} ids. Fix: a teacher with the policy's vocabulary.")
