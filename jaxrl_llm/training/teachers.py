"""The teachers of a run: checkpoints whose log-probs of the policy's completions it reads."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError
from jaxrl_llm.models import Model, hf
from jaxrl_llm.parallel import processes
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
      problems = getattr(task, "training_problems", None)
      for problem in task.batch(1) if problems is None else problems:
        self.index(problem)


def column_by_row(passes: tuple[Callable[..., jax.Array], ...], place: int, *arguments,
                  **packed) -> jax.Array:
  """Returns the column of rows with different teachers: each teacher scores the batch, one after
  the other, and a row keeps what its own found.

  Args:
    place: of the `ByRow` among the arguments.
  """
  teachers: ByRow = arguments[place]
  column = None
  for index, (run, params) in enumerate(zip(passes, teachers.params, strict=True)):
    if params is not None:
      values = run(*arguments[:place], params, *arguments[place + 1:], **packed)
      column = values if column is None else _with_teacher(
          teachers.teacher_index, index, values, column)
  assert column is not None, "a row has a teacher"
  return column


@jax.jit
def _with_teacher(teacher_index: jax.Array, index: int, values: jax.Array,
                  fallback: jax.Array) -> jax.Array:
  """Returns `values` in the rows of the teacher of this index, `fallback` elsewhere; both [B, L].
  """
  return jnp.where((teacher_index == index)[:, None], values, fallback)
