"""What samples the training rollouts, by name: a backend of a plugin trains a run on its rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smallest

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError
from jaxrl_llm.objective.row_stats import row_stats
from jaxrl_llm.registry import BACKENDS
from jaxrl_llm.rollouts import backends
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.run_state import first_state
from jaxrl_llm.types import STOP_TOKEN, Rollout
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.loop import make_loop

NEW = 4
WORDS = 2  # tokens that the toy answers with, before the stop token


def toy(parts: backends.BackendParts):
  """Answers every prompt with tokens that depend on the row alone, and the policy's log-probs."""
  cfg, stop, model = parts.rollout, parts.task.stop_ids[0], parts.model
  group = cfg.group_size

  def prepare(params):
    return jax.tree.map(jnp.copy, params)

  @jax.jit
  def rows(params, prompts):
    prompt, width = prompts.prompt_length, cfg.row_length
    at = jnp.arange(width)
    place = at - prompt[:, None]
    words = jnp.where(place < WORDS, 1 + (prompts.row_id[:, None] + place) % 7, stop)
    tokens = jnp.where(place < 0, jnp.pad(prompts.tokens, ((0, 0), (0, NEW))), words)
    mask = (place >= 0) & (place <= WORDS)
    length = prompt + WORDS + 1
    tokens = jnp.where(at < length[:, None], tokens, parts.task.tokenizer.pad_token_id)
    log_probs = row_stats(params, tokens, length, model=model).log_probs
    ids, none = prompts.row_id, jnp.zeros_like(prompts.row_id)
    return Rollout(tokens, mask, length, prompt, jnp.where(mask, log_probs, 0), none > 0,
                   none + STOP_TOKEN, none, ids, prompts.group_id)

  def sample(params, prompts, key, sampling, problems=None):
    del key, sampling, problems
    return parallel.spread(rows(params, prompts), parts.mesh), {"rollout/group": float(group)}

  return prepare, sample


@pytest.fixture(autouse=True)
def registered():
  backends.register("toy")(toy)


def configured(**flat):
  return smallest.resolved(**{"advantage.name": "none"} | flat)


def name_of(cfg):
  return backends.name_of(cfg.rollout.backend, cfg.server.url)


def iterated(**flat):
  """(rows of the files, host metrics, device metrics) of one iteration on two devices."""
  built = setup.build(configured(**flat), jax.devices()[:2])
  start = smallest.start_of(built)
  run = first_state(built.learner, start)
  _, metrics, host, rows = iterate(make_loop(*built), run, start.params, 1)
  return rows, host, metrics


def check_rows(rows: list[dict]) -> None:
  """The rows are the toy's: words that follow from the row's id, and a stop token."""
  assert len(rows) == 16
  for index, row in enumerate(sorted(rows, key=lambda row: row["row_id"])):
    words = row["tokens"][row["prompt_length"]:].tolist()
    expected = [1 + (row["row_id"] + place) % 7 for place in range(WORDS)]
    assert words[:WORDS] == expected and len(words) == WORDS + 1, index


@pytest.mark.slow
def test_a_backend_of_a_plugin_trains_a_run():
  rows, host, metrics = iterated(**{"rollout.backend": "toy"})
  check_rows(rows)
  assert host["rollout/group"] == 4.0 and host["step"] == 2
  absolute = metrics.batch["mismatch/absolute"]
  assert float(absolute.total / absolute.count) < 1e-5, "its log-probs are the trainer's"
  norms = [float(step["optimizer/grad_norm"].total) for step in metrics.steps]
  assert all(np.isfinite(norms))
  # What the check rejects: completions that lie in each other's rows.
  first, second, *rest = rows
  swapped = [{**first, "row_id": second["row_id"]}, {**second, "row_id": first["row_id"]}]
  with pytest.raises(AssertionError):
    check_rows([*swapped, *rest])


def test_evaluations_and_other_runs_stay_with_the_engine():
  default, of_toy = (setup.build(configured(**{"rollout.backend": name}), jax.devices()[:1]).sampler
                     for name in ("default", "toy"))
  assert default.sample.__module__.startswith("jaxrl_llm.") and of_toy.sample.__module__ == __name__
  assert of_toy.sample_heldout.__module__ == default.sample_heldout.__module__


def test_the_default_follows_the_server_s_address():
  assert name_of(configured()) == backends.ENGINE
  server = {"server.url": "http://127.0.0.1:9", "server.folder": "weights"}
  assert name_of(configured(**server)) == backends.SERVER
  assert name_of(configured(**{"rollout.backend": "engine"})) == backends.ENGINE


@pytest.mark.parametrize(("keys", "message"), [
    ({"rollout.backend": "engin"}, r"rollout\.backend = 'engin': registered are engine, server, toy"
     r".*Did you mean 'engine'"),
    ({"rollout.backend": "server"}, r"'server' with server\.url = ''.*Fix: server\.url="),
    ({"rollout.backend": "engine", "server.url": "http://127.0.0.1:9", "server.folder": "w"},
     r"'engine' with server\.url = 'http.*Fix: rollout\.backend=default"),
])
def test_what_does_not_fit_is_refused(keys, message):
  with pytest.raises(ConfigError, match=message):
    configured(**keys)


def test_a_backend_that_fails_is_blamed_with_its_place():
  @backends.register("failing")
  def failing(parts):
    raise KeyError(parts.rollout.prompts)

  with pytest.raises(ConfigError, match=r"backend 'failing' \(.*test_backends\.py.*KeyError"):
    setup.build(configured(**{"rollout.backend": "failing"}), jax.devices()[:1])
  with pytest.raises(ValueError, match="backend 'failing' is registered already"):
    backends.register("failing")(failing)
  assert set(BACKENDS.names()) == {"engine", "server", "toy", "failing"}
