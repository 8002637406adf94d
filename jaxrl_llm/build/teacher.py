"""The teacher of a run: a checkpoint whose log-probs of the policy's completions it reads."""

import dataclasses
import functools

from jax.sharding import Mesh
from transformers import PreTrainedTokenizerBase

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, ModelConfig
from jaxrl_llm.models import CheckpointError, Model, hf
from jaxrl_llm.models.hf import import_weights, network_config
from jaxrl_llm.tasks.tokenizer import load_tokenizer
from jaxrl_llm.types import Params


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


def make_teacher(pretrained: str, policy: ModelConfig, tokenizer: PreTrainedTokenizerBase,
                 mesh: Mesh) -> Teacher | None:
  """Returns the teacher of a run; None without a checkpoint. Its weights are not read yet.

  Args:
    pretrained: `teacher.pretrained`.
    policy: how its network is computed: attention, scanned layers, dtype.
    tokenizer: of the policy, whose tokens the teacher must have, too.

  Raises:
    ConfigError: the checkpoint cannot be read, or its tokenizer is another one.
  """
  if not pretrained:
    return None
  try:
    directory = import_weights.base_directory(pretrained)
    shapes = network_config.read_config(directory)
  except (CheckpointError, OSError) as error:
    raise ConfigError(f"teacher.pretrained = {pretrained!r}: {error}") from error
  _check_tokens(pretrained, tokenizer.get_vocab(), load_tokenizer(directory).get_vocab())
  model = dataclasses.replace(shapes, scan_layers=policy.scan_layers, attention=policy.attention,
                              compute_dtype=policy.compute_dtype)
  return Teacher(pretrained, Model(model, parallel.Layout(mesh)), mesh)


def _check_tokens(pretrained: str, policy: dict[str, int], teacher: dict[str, int]) -> None:
  """Refuses a teacher for which an id of the policy is another token, or none."""
  differing = sorted(token for token in policy if teacher.get(token) != policy[token])
  if differing:
    token = differing[0]
    theirs = teacher.get(token, "no id")
    raise ConfigError(
        f"teacher.pretrained = {pretrained!r}: its tokenizer is not the policy's: of "
        f"{len(policy)} tokens {len(differing)} differ, {token!r} is {policy[token]} for the "
        f"policy and {theirs} for the teacher. Fix: a teacher with the policy's tokenizer.")
