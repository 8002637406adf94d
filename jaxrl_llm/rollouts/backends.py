"""Rollout backends by name: the run's own devices, a server, or a plugin's.

A backend is a function of BackendParts that returns (prepare, sample), see
`rollouts.sample_functions`: the first takes over the policy's parameters once an iteration, the
second samples rows and gives each token the log-prob that it was sampled with.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from jax.sharding import Mesh

from jaxrl_llm.config import DEFAULT, ConfigError, RolloutConfig, ServerConfig
from jaxrl_llm.fields import shown
from jaxrl_llm.models import Model
from jaxrl_llm.registry import BACKENDS
from jaxrl_llm.rollouts import engine_sampler, numerics
from jaxrl_llm.rollouts.sample_functions import PrepareFn, SampleFn
from jaxrl_llm.types import Rollout, Task

if TYPE_CHECKING:  # imported for runs that have one
  from jaxrl_llm.rollouts.environment import Environment

ENGINE, SERVER = "engine", "server"


class BackendParts(NamedTuple):
  """The arguments of a backend's factory.

  Attributes:
    rollout, server: sections of the config.
    task, model: parts of the run.
    mesh, rollout_mesh: the devices that train, to which rollouts come back, and that sample.
    environment: ends turns by tools or stop strings; None without either.
  """

  rollout: RolloutConfig
  server: ServerConfig
  task: Task
  model: Model
  mesh: Mesh
  rollout_mesh: Mesh
  environment: "Environment | None"


Backend = Callable[[BackendParts], tuple[PrepareFn, SampleFn]]


def register(name: str, *, replace: bool = False):
  """Returns a decorator that enters a backend: `backend(parts: BackendParts) -> (prepare, sample)`.

  Args:
    name: value of `rollout.backend`.
    replace: overwrites an entry on purpose, for notebooks that run a cell again.
  """
  return BACKENDS.register(name, replace=replace)


def name_of(backend: str, url: str) -> str:
  """Returns the name of the backend for `rollout.backend` and `server.url`."""
  if backend != DEFAULT:
    return backend
  return SERVER if url else ENGINE


def check(backend: str, url: str) -> None:
  """Refuses a name that is not registered, and a server's address that nothing reads.

  Raises:
    ConfigError: naming the keys.
  """
  name = name_of(backend, url)
  BACKENDS[name]  # raises for an unknown name
  if name == SERVER and not url:
    raise ConfigError("rollout.backend = 'server' with server.url = '': which server? Fix: "
                      "server.url=http://host:8000 and server.folder.")
  if name == ENGINE and url:
    raise ConfigError(f"rollout.backend = 'engine' with server.url = {url!r}: the "
                      "engine reads no server. Fix: rollout.backend=default, or an empty "
                      "server.url.")


def make(parts: BackendParts) -> tuple[PrepareFn, SampleFn]:
  """Returns (prepare, sample) of the run's backend."""
  name = name_of(parts.rollout.backend, parts.server.url)
  with BACKENDS.blamed(name):
    functions = BACKENDS[name].function(parts)
    if not isinstance(functions, tuple) or [*map(callable, functions)] != [True, True]:
      raise TypeError(f"it returned {shown(functions)}; (prepare, sample) was expected")
  if name in (ENGINE, SERVER):
    return functions
  prepare, sample = functions
  return _with_backend_errors(name, prepare), _with_backend_errors(name, sample, _check_rollout)


def _with_backend_errors(name: str, function: Callable,
                         check: Callable[[Any], None] | None = None) -> Callable:
  """Returns a function of a plugin's backend whose failures name the backend."""
  @functools.wraps(function)
  def call(*arguments, **options):
    with BACKENDS.blamed(name):
      value = function(*arguments, **options)
      if check is not None:
        check(value)
      return value

  return call


def _check_rollout(value) -> None:
  """Refuses what is not (Rollout, metrics)."""
  pair = isinstance(value, tuple) and len(value) == 2
  if not pair or not isinstance(value[0], Rollout) or not isinstance(value[1], dict):
    raise TypeError(f"sample returned {shown(value)}; (Rollout, metrics) was expected")


@register(ENGINE)
def engine(parts: BackendParts) -> tuple[PrepareFn, SampleFn]:
  """Samples on the run's own devices, in the rollout's numerics."""
  model = numerics.rollout_model(parts.model, parts.rollout)
  prepare = engine_sampler.make_prepare(parts.rollout, parts.model, parts.mesh, parts.rollout_mesh)
  rows = engine_sampler.Rows.of_task(parts.rollout, parts.task, parts.environment)
  return prepare, engine_sampler.sampler_on(parts.rollout_mesh, parts.mesh, model, rows)


@register(SERVER)
def server(parts: BackendParts) -> tuple[PrepareFn, SampleFn]:
  """Asks the server of `parts.server`."""
  from jaxrl_llm.rollouts.server import Limits, ServerSampler

  r = parts.rollout
  limits = Limits(r.max_new_tokens, r.min_new_tokens, parts.task.stop_ids,
                  parts.model.config.vocab_size)
  sampler = ServerSampler(parts.server, parts.model, parts.task.tokenizer, limits, r.group_size,
                          parts.mesh)
  return sampler.prepare, sampler.sample
