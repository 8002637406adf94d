"""A small rollout server for tests: the project's sampler behind the paths of vLLM and SGLang.

Run as a command it serves until it is killed:

  python tests/rollouts/server/engine_server.py --port=8123
"""

import argparse
import dataclasses
import functools
import queue
import threading
import time

import control_stub
import jax
import numpy as np
import server_schemas

from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.models import load_pretrained
from jaxrl_llm.rollouts import generate, hand_over
from jaxrl_llm.rollouts.next_token import rules_on
from jaxrl_llm.types import STOP_TOKEN, PromptBatch, Sampling

ROWS = 64  # sampled at once
GATHER = 0.01  # seconds in which rows join a batch
WIDTH = 32  # tokens of a prompt at most


@dataclasses.dataclass
class Waiting:
  body: dict
  done: threading.Event = dataclasses.field(default_factory=threading.Event)
  answer: dict | None = None


class EngineServer(control_stub.ControlStub):
  """Serves a checkpoint folder, at first none.

  Attributes:
    spoil: changes an answer before it is sent, given (number of the answer, answer); a test's way
      to a server that misbehaves.
    loads: folders that were loaded.
    bodies: of the requests for completions.
  """

  def __init__(self, port: int = 0, spoil=None):
    self.spoil, self.loads, self.bodies = spoil or (lambda number, answer: answer), [], []
    self.policy, self._ended = None, False
    self._queue: queue.Queue = queue.Queue()
    super().__init__(port, releases={}, checks=False)
    threading.Thread(target=self._sample, daemon=True).start()

  def stop(self) -> None:
    self._ended = True
    super().stop()

  def load(self, folder: str) -> tuple[int, dict]:
    model, params, _ = load_pretrained(folder)
    self.policy = model, hand_over.make(model, None)(params)
    self.loads.append(folder)
    return super().load(folder)

  def answer(self, path: str, body: dict) -> tuple[int, dict | bytes] | None:
    if path == "/v1/models":
      reply = 200, {"object": "list", "data": [{"id": "policy", "object": "model"}]}
    else:
      reply = self._complete(body) if path == "/v1/completions" else super().answer(path, body)
    return None if self._ended else reply  # connections outlive the server's socket

  def _complete(self, body: dict) -> tuple[int, dict | bytes]:
    problem = server_schemas.refuse(body)
    if problem or self.policy is None:
      return 400, {"message": problem or "no weights"}
    self.bodies.append(body)
    waiting, number = Waiting(body), len(self.bodies)
    self._queue.put(waiting)
    waiting.done.wait()
    return 200, self.spoil(number, waiting.answer)

  def _sample(self) -> None:
    while not self._ended:
      rows = [self._queue.get()]
      end = time.monotonic() + GATHER
      while len(rows) < ROWS and (left := end - time.monotonic()) > 0:
        try:
          rows.append(self._queue.get(timeout=left))
        except queue.Empty:
          break
      model, params = self.policy
      for row, answer in zip(rows, sampled(model, params, [row.body for row in rows]), strict=True):
        row.answer = answer
        row.done.set()


@functools.cache
def program(model, max_tokens: int, min_tokens: int, stop_ids: tuple[int, ...], rules: frozenset):
  cfg = SamplerConfig(1, max_tokens, max_tokens, stop_ids, 0, min_new_tokens=min_tokens)
  return jax.jit(functools.partial(generate, model=hand_over.decode_model(model), cfg=cfg,
                                   rules=rules))


def sampled(model, params, bodies: list[dict]) -> list[dict]:
  """The answers to requests that agree in everything but prompt and seed."""
  first = bodies[0]
  tokens, lengths = np.zeros((ROWS, WIDTH), np.int32), np.ones(ROWS, np.int32)
  seeds = np.arange(ROWS, dtype=np.int32)
  for i, body in enumerate(bodies):
    tokens[i, :len(body["prompt"])] = body["prompt"]
    lengths[i], seeds[i] = len(body["prompt"]), body["seed"]
  sampling = Sampling.of(first["temperature"], top_k=max(0, first["top_k"]), top_p=first["top_p"],
                         min_p=first["min_p"])
  run = program(model, first["max_tokens"], first["min_tokens"], tuple(first["stop_token_ids"]),
                rules_on(sampling))
  prompts = PromptBatch(tokens, lengths, seeds, np.arange(ROWS, dtype=np.int32))
  rollout = jax.device_get(run(params, prompts, jax.random.key(0), sampling))
  return [answer(body, rollout, i) for i, body in enumerate(bodies)]


def answer(body: dict, rollout, i: int) -> dict:
  completion = slice(rollout.prompt_length[i], rollout.length[i])
  ids = rollout.tokens[i, completion].tolist()
  log_probs = rollout.behavior_log_probs[i, completion].tolist()
  stopped = rollout.stop_reason[i] == STOP_TOKEN
  return {
      "id": "cmpl-1", "object": "text_completion", "created": 0, "model": body["model"],
      "choices": [{
          "index": 0, "text": "", "finish_reason": "stop" if stopped else "length",
          "token_ids": ids, "prompt_token_ids": body["prompt"],
          "logprobs": {"token_logprobs": log_probs, "tokens": [f"token_id:{x}" for x in ids],
                       "text_offset": [0] * len(ids), "top_logprobs": [None] * len(ids)},
      }],
      "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids),
                "total_tokens": len(body["prompt"]) + len(ids)},
  }


if __name__ == "__main__":
  parser = argparse.ArgumentParser()
  parser.add_argument("--port", type=int, default=0)
  started = EngineServer(parser.parse_args().port)
  print(started.url, flush=True)
  threading.Event().wait()
