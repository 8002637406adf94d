"""Rows from a server are the policy's, and a server that misbehaves costs time, never a row."""

import dataclasses
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import engine_server
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_for

from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig, ModelConfig, ServerConfig, StepConfig, from_dict
from jaxrl_llm.models import Model, load_pretrained
from jaxrl_llm.rollouts.server import Limits, ServerError, ServerSampler, client, control, weights
from jaxrl_llm.rollouts.server.completions import request
from jaxrl_llm.tasks.tokenizer import character_tokenizer
from jaxrl_llm.training.score import score
from jaxrl_llm.types import PromptBatch, Sampling

SHAPES = ModelConfig(vocab_size=17, width=16, num_layers=1, num_heads=1, num_kv_heads=1,
                     head_dim=8, mlp_width=16)
MESH = parallel.make_mesh(MeshConfig(data=1), jax.devices()[:1])
MODEL = Model(SHAPES, parallel.Layout(MESH))
STOPS, LENGTH, GROUP = (2,), 8, 2
TOKENIZER = character_tokenizer("0123456789+-*=")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  monkeypatch.setattr(client, "PAUSE", (0.02, 0.05))


@pytest.fixture
def serve():
  """Starts servers, which are stopped after the test."""
  started = []

  def start(*arguments, **options):
    started.append(engine_server.EngineServer(*arguments, **options))
    return started[-1]

  yield start
  for server in started:
    server.stop()


def params(seed=0):
  return jax.tree.map(lambda x: 3 * x, MODEL.init(jax.random.key(seed)))


def sampler(server, folder, **options) -> ServerSampler:
  cfg = ServerConfig(url=server.url, folder=str(folder), patience=300.0, **options)
  return ServerSampler(cfg, MODEL, TOKENIZER, Limits(LENGTH, 0, STOPS, SHAPES.vocab_size), GROUP,
                       MESH)


def prompts(groups=6):
  rows = groups * GROUP
  tokens = np.repeat(np.arange(3 * groups, dtype=np.int32).reshape(groups, 3) % 14 + 3, GROUP, 0)
  ids = np.arange(rows, dtype=np.int32)
  return PromptBatch(tokens, np.full(rows, 3, np.int32), ids + 100, ids // GROUP)


def sample(backend, policy, key=1):
  return jax.device_get(backend.sample(policy, prompts(), jax.random.key(key), Sampling.of(1.0)))


def scored(rollout, theta, rules: Sampling | None = None):
  """The trainer's log-probs of the rows; `rules` prune to the most likely tokens."""
  cfg = StepConfig(dataclasses.replace(from_dict({}).loss, max_new_tokens=LENGTH))
  stats = score(theta, jax.tree.map(jnp.asarray, rollout), rules or Sampling.of(1.0), model=MODEL,
                cfg=cfg, rules=frozenset({"top_k"} if rules else ()))
  return np.where(rollout.mask, stats.log_probs, 0)


@pytest.mark.slow
@pytest.mark.parametrize("api", ["vllm", "sglang"])
def test_rows_are_those_of_the_policy(api, serve, tmp_path):
  server = serve()
  backend = sampler(server, tmp_path, api=api)
  theta = params()
  rollout, metrics = sample(backend, backend.prepare(theta))
  assert rollout.mask.sum() > 20 and len(np.unique(rollout.tokens, axis=0)) > GROUP * 3
  np.testing.assert_array_equal(rollout.row_id, prompts().row_id)
  np.testing.assert_allclose(rollout.behavior_log_probs, scored(rollout, theta), atol=5e-5)
  assert np.abs(rollout.behavior_log_probs - scored(rollout, params(1))).max() > 0.1
  assert metrics["server/failed_groups"] == metrics["server/redrawn_batches"] == 0
  again, _ = sample(backend, backend.prepare(theta))
  np.testing.assert_array_equal(again.tokens, rollout.tokens)  # seeds follow from key and row
  assert not np.array_equal(
      sample(backend, backend.prepare(theta), key=2)[0].tokens, rollout.tokens)
  assert len(server.loads) == 1, "weights that are there are not loaded again"


def test_published_weights_are_the_parameters(tmp_path):
  theta = params()
  one = weights.publish(tmp_path, MODEL, theta, TOKENIZER, None)
  _, loaded, _ = load_pretrained(one.folder)
  jax.tree.map(np.testing.assert_array_equal, loaded, theta)
  (tmp_path / "of the user").mkdir()
  (tmp_path / "unfinished_123").mkdir()  # of a run that was killed
  others = [weights.publish(tmp_path, MODEL, params(seed), TOKENIZER, None) for seed in (1, 2)]
  assert weights.publish(tmp_path, MODEL, params(1), TOKENIZER, None) == others[0]
  assert len({one.version, *(other.version for other in others)}) == 3
  kept = {path.name for path in tmp_path.iterdir()}
  assert kept == {"of the user", *(other.version for other in others)}


def every(n: int, spoilt):
  """Spoils every n-th answer."""
  return lambda number, answer: spoilt(answer) if number % n == 0 else answer


def _nan(answer):
  answer["choices"][0]["logprobs"]["token_logprobs"][0] = float("nan")
  return answer


GARBAGE = {"text": lambda _: b"<html>busy</html>", "nothing": lambda _: b"", "NaN": _nan,
           "an error": lambda _: {"error": {"message": "out of memory"}},
           "null": lambda _: None}


@pytest.mark.parametrize("kind", quick_for((), GARBAGE))
def test_rows_with_unusable_answers_are_drawn_again(kind, serve, tmp_path):
  server = serve(spoil=every(5, GARBAGE[kind]))
  backend = sampler(server, tmp_path, in_flight=1)
  theta = params()
  rollout, metrics = sample(backend, backend.prepare(theta))
  np.testing.assert_allclose(rollout.behavior_log_probs, scored(rollout, theta), atol=5e-5)
  assert rollout.length.min() > 3
  assert len(server.bodies) == 12 + 2 and metrics["server/failed_groups"] == 2
  seeds = [body["seed"] for body in server.bodies]
  assert len(set(seeds)) == len(seeds), "a row that failed has another seed"


def test_only_garbage_ends_with_one_line(serve, tmp_path):
  server = serve(spoil=lambda number, answer: {"choices": "none"})
  backend = sampler(server, tmp_path)
  with pytest.raises(ServerError, match=r"3 answers for one row were unusable.*no choices"):
    sample(backend, backend.prepare(params()))


@pytest.mark.slow
def test_requests_in_flight_are_bounded(serve, tmp_path, monkeypatch):
  now, most, guard = itertools.count(), [0], threading.Lock()
  first = threading.Barrier(3, timeout=300)
  held: set[int] = set()
  original = engine_server.EngineServer._complete

  def counted(self, body):
    number = next(now)
    with guard:
      held.add(number)
      most[0] = max(most[0], len(held))
    try:
      if number < 3:
        first.wait()
      return original(self, body)
    finally:
      with guard:
        held.discard(number)

  monkeypatch.setattr(engine_server.EngineServer, "_complete", counted)
  backend = sampler(serve(), tmp_path, in_flight=3)
  sample(backend, backend.prepare(params()))
  assert most[0] == 3


@pytest.mark.slow
def test_a_server_that_is_away_is_waited_for(serve, tmp_path, caplog, monkeypatch):
  server = serve()
  backend, theta = sampler(server, tmp_path), params()
  policy = backend.prepare(theta)
  server.stop()
  note, guard, noted = backend._client._note_absence, threading.Lock(), []

  def comes_back(error):  # half a second later, without the weights
    note(error)
    with guard:
      if not noted:
        threading.Timer(0.5, serve, [server.port]).start()
      noted.append(error)

  monkeypatch.setattr(backend._client, "_note_absence", comes_back)
  rollout, metrics = sample(backend, policy)
  np.testing.assert_allclose(rollout.behavior_log_probs, scored(rollout, theta), atol=5e-5)
  assert metrics["time/server_away"] > 0.2
  # Threads of earlier tests may still wait for servers of theirs.
  text = "\n".join(line for line in caplog.text.splitlines() if f":{server.port}'" in line)
  # A thread may find it away that asked before it came back, and hears that after the others.
  assert 1 <= text.count("does not answer") == text.count("answers again") <= len(noted)
  assert "was started again" in text


def own_lines(caplog) -> str:
  """What was said of the server of a test; threads of earlier tests may wait for theirs."""
  return "\n".join(line for line in caplog.messages if "'http://127.0.0.1:9' " in line)


@pytest.mark.parametrize("each, lines", [(0.0, 3), (10.0, 1)])
def test_a_long_absence_is_said_again_and_again(each, lines, caplog, monkeypatch):
  """As of a server that still starts; the second case is what the first one rejects."""
  monkeypatch.setattr(client, "EACH", each)
  answers = iter([client.AwayError("starting")] * 3 + [None])

  def call():
    if error := next(answers):
      raise error

  client.Client("http://127.0.0.1:9", 1, 1.0, 300.0).with_retries(call)
  text = own_lines(caplog)
  assert text.count("does not answer (starting)") == text.count("server.patience = 300 s") == lines


NUMBERS = SimpleNamespace(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)


@pytest.mark.parametrize("stated, temperature, named", [
    ({}, 0.7, []), ({"logprobs_mode": "processed_logprobs"}, 0.7, []),
    ({"logprobs_mode": "raw_logprobs"}, 1.0, []),
    ({"logprobs_mode": "raw_logprobs"}, 0.7, ["logprobs_mode = raw_logprobs"]),
    ({"temperature": 0.6, "repetition_penalty": 1.1, "max_new_tokens": 9}, 1.0, []),
    ({"temperature": 0.6, "dry_multiplier": 0.8}, 1.0, ["dry_multiplier = 0.8"])])
def test_every_number_is_sent_and_what_a_server_adds_is_named(stated, temperature, named):
  numbers = SimpleNamespace(**{**vars(NUMBERS), "temperature": temperature})
  body = request("m", [1], 0, numbers, Limits(8, 0, (2,), 32))
  assert (body["repetition_penalty"], body["presence_penalty"], body["frequency_penalty"]) == (
      1.0, 0.0, 0.0)
  assert control.differing(stated, body) == named
  # What the test rejects: a request that leaves the penalty to the server.
  lacking = {key: value for key, value in body.items() if key != "repetition_penalty"}
  assert ("repetition_penalty = 1.1" in control.differing(stated, lacking)) == (
      "repetition_penalty" in stated)


def test_both_servers_say_how_they_sample():
  def settings_of(api, answer):
    return control.APIS[api].stated(SimpleNamespace(inquire=lambda path: answer))

  config = {"vllm_config": {"model_config": {
      "logprobs_mode": "raw_logprobs", "override_generation_config": {"top_k": 5}}}}
  assert settings_of("vllm", config) == {"logprobs_mode": "raw_logprobs", "top_k": 5}
  assert settings_of("sglang", {"preferred_sampling_params": '{"min_p": 0.1}'}) == {"min_p": 0.1}
  for answer in (None, [], {}, {"vllm_config": "text"}, {"preferred_sampling_params": None}):
    assert settings_of("vllm", answer) == settings_of("sglang", answer) == {}


def test_an_absence_is_said_once(caplog):
  """By all threads together, each of which finds the server away, and then there."""
  caller, together = client.Client("http://127.0.0.1:9", 1, 1.0, 300.0), threading.Barrier(4)

  def ask():
    answers = iter((client.AwayError("away"), None))

    def call():
      together.wait(300)
      if error := next(answers):
        raise error

    caller.with_retries(call)

  with ThreadPoolExecutor(4) as threads:
    for done in [threads.submit(ask) for _ in range(4)]:
      done.result(300)
  text = own_lines(caplog)
  assert text.count("does not answer") == text.count("answers again") == 1


def test_a_server_that_stays_away_ends_with_one_line(serve, tmp_path):
  server = serve()
  backend = sampler(server, tmp_path)
  backend._client._patience = 0.3
  policy = backend.prepare(params())
  server.stop()
  with pytest.raises(ServerError, match=r"did not answer for .* give the same command again"):
    sample(backend, policy)


@pytest.mark.slow
def test_rows_of_other_weights_are_dropped(serve, tmp_path, caplog):
  """The server is started again in the middle of a batch, and has random weights then."""
  other = weights.publish(tmp_path / "other", MODEL, params(1), TOKENIZER, None)
  server = serve()

  def restart(number, answer):
    if number == 7:
      server.load(str(other.folder))
      server.version = "default"
    return answer

  server.spoil = restart
  backend, theta = sampler(server, tmp_path / "handed", in_flight=1), params()
  rollout, metrics = sample(backend, backend.prepare(theta))
  assert metrics["server/redrawn_batches"] == 1
  text = "\n".join(line for line in caplog.text.splitlines() if f":{server.port}'" in line)
  assert "all completions are drawn again" in text
  np.testing.assert_allclose(rollout.behavior_log_probs, scored(rollout, theta), atol=5e-5)


@pytest.mark.slow
def test_believing_the_server_would_take_rows_of_other_weights(serve, tmp_path, monkeypatch):
  """A wrong one: it does not ask for the version. The test above rejects it."""
  other = weights.publish(tmp_path / "other", MODEL, params(1), TOKENIZER, None)
  server = serve()
  backend, theta = sampler(server, tmp_path / "handed"), params()
  policy = backend.prepare(theta)
  server.load(str(other.folder))
  monkeypatch.setattr(backend, "_version", lambda: policy.weights.version)
  rollout, _ = sample(backend, policy)
  assert np.abs(rollout.behavior_log_probs - scored(rollout, theta)).max() > 0.1


def test_a_key_is_sent_if_there_is_one(monkeypatch):
  caller = client.Client("http://127.0.0.1:9", 1, 1.0, 1.0)
  assert "Authorization" not in caller._session.headers
  monkeypatch.setenv(client.KEY, "secret")
  caller = client.Client("http://127.0.0.1:9", 1, 1.0, 1.0)
  assert caller._session.headers["Authorization"] == "Bearer secret"


@pytest.mark.slow
def test_a_pruned_distribution_is_the_servers(serve, tmp_path):
  backend, theta = sampler(serve(), tmp_path), params()
  rules = Sampling.of(0.8, top_k=3)
  rollout, _ = jax.device_get(
      backend.sample(backend.prepare(theta), prompts(), jax.random.key(1), rules))
  np.testing.assert_allclose(rollout.behavior_log_probs, scored(rollout, theta, rules), atol=5e-5)
  assert np.abs(rollout.behavior_log_probs - scored(rollout, theta)).max() > 0.1
