"""The sampler that asks a server: weights are handed over, rows come back with log-probs."""

import contextlib
import dataclasses
import functools
import logging
import time

import jax
import numpy as np
from jax.sharding import Mesh
from transformers import PreTrainedTokenizerBase

from jaxrl_llm import parallel
from jaxrl_llm.config import ServerConfig
from jaxrl_llm.models import Model
from jaxrl_llm.parallel import processes
from jaxrl_llm.rollouts.assembly import Completions, assemble
from jaxrl_llm.rollouts.server import ServerError, completions, control, weights
from jaxrl_llm.rollouts.server.asking import ATTEMPTS, RequestBatcher
from jaxrl_llm.rollouts.server.client import Client
from jaxrl_llm.rollouts.server.completions import Completion, Limits
from jaxrl_llm.rollouts.server.weights import Weights
from jaxrl_llm.types import Params, PromptBatch, Rollout, Sampling

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ServedParams:
  """Parameters that the server was given, in place of the arrays that a local sampler reads.

  Attributes:
    weights: the folder, and its checksum.
    seconds: time to write and load it.
  """

  weights: Weights
  seconds: float


class ServerSampler:
  """`prepare` and `sample` of `wiring.sampler.Sampler`, by a server.

  Args:
    cfg: config of the server.
    model: the model whose parameters `prepare` gets.
    tokenizer: tokenizer of the policy.
    limits: what ends a row.
    group_size: rows of each prompt, which lie together.
    mesh: the devices that rollouts come back to.
  """

  def __init__(self, cfg: ServerConfig, model: Model, tokenizer: PreTrainedTokenizerBase,
               limits: Limits, group_size: int, mesh: Mesh):
    self._cfg, self._model, self._tokenizer = cfg, model, tokenizer
    self._limits, self._group_size, self._mesh = limits, group_size, mesh
    self._api = control.APIS[cfg.api]
    self._client = Client(cfg.url, cfg.in_flight, cfg.timeout, cfg.patience)
    self._loaded: str | None = None  # the version that the server was last given
    self._checksums: dict[str, str] = {}  # by version, the server's own
    self._greeted = self._compared = False

  def prepare(self, params: Params) -> ServedParams:
    """Writes the parameters as a Hugging Face folder, and lets the server load it.

    They are in the compute dtype, which a server takes over unless its options name another one.

    All processes call this together; the first one writes and asks.

    Raises:
      ServerError: it does not, it is too old, or it has another version or weights afterwards.
      OSError: the folder cannot be written.
    """
    begin = time.perf_counter()
    weights_path = weights.publish(self._cfg.folder, self._model, params, self._tokenizer,
                                   self._model.config.compute_dtype)
    processes.from_main("server load", functools.partial(self._load, weights_path))
    return ServedParams(weights_path, time.perf_counter() - begin)

  def sample(self, params: ServedParams, prompts: PromptBatch, key: jax.Array, sampling: Sampling,
             problems=None) -> tuple[Rollout, dict[str, float]]:
    """Samples a row for each prompt. Seeds follow from the key and the row id.

    The first process asks for the rows of all, and each gets those of its prompts. If the server's
    weights changed meanwhile, all rows are dropped and sampled again.

    Args:
      params: from `prepare`.
      prompts: of this process.
      problems: not read; no environment runs here.

    Raises:
      ServerError: as `RequestBatcher.rows`, or the weights changed ATTEMPTS times.
    """
    del problems
    host = jax.device_get(prompts)
    rows = [host.tokens[i, :length] for i, length in enumerate(host.prompt_length)]
    noise = [int(word) for word in np.ravel(jax.random.key_data(key))]
    shares = processes.exchange("server prompts", (rows, host.row_id))
    dealt = [None] * len(shares)
    if processes.is_main():
      dealt = self._dealt(params, shares, noise, jax.device_get(sampling))
    completions, metrics = processes.deal("server rows", dealt)[0]
    return parallel.to_global(self._to_rollout(host, completions), self._mesh), metrics | {
        "time/hand_over": params.seconds}

  def _dealt(self, params: ServedParams, shares: list[tuple[list, np.ndarray]], noise: list[int],
             sampling: Sampling) -> list[tuple[list[Completion], dict]]:
    """Returns (completions, metrics) of each process, of whose rows `shares` has prompts and ids;
    what is counted once is the first one's.
    """
    rows = [row for prompts, _ in shares for row in prompts]
    completions, metrics = self._sample(params, rows, np.concatenate([ids for _, ids in shares]),
                                        noise, sampling)
    size, others = len(rows) // len(shares), dict.fromkeys(metrics, 0.0)
    return [(completions[begin:begin + size], others if begin else metrics)
            for begin in range(0, len(rows), size)]

  def _sample(self, params: ServedParams, rows: list, row_ids: np.ndarray, noise: list[int],
              sampling: Sampling) -> tuple[list[Completion], dict[str, float]]:
    begin_wait, failures = self._client.waited, np.zeros(len(rows), int)
    if not self._compared:
      self._compare(sampling)
    for draw in range(ATTEMPTS):
      self._load(params.weights)
      served_name = self._client.with_retries(lambda: control.served_name(self._client))
      asker = RequestBatcher(self._client, served_name, self._limits, self._cfg.in_flight)
      seeds = [np.random.SeedSequence([*noise, int(row), draw]) for row in row_ids]
      sampled, unusable = asker.rows(rows, seeds, sampling)
      failures += unusable
      version = self._version()
      if version == params.weights.version:
        break
      logger.warning(
          "server.url = %r has weights %s after sampling, and had %s before: all completions "
                     "are drawn again", self._cfg.url, version, params.weights.version)
    else:
      raise ServerError(
          f"server.url = {self._cfg.url!r} changed its weights {ATTEMPTS} times while it "
          "sampled. The last checkpoint is complete. Fix: a server that only this run loads.")
    groups = failures.reshape(-1, self._group_size).any(1)
    return sampled, {
        "server/failed_groups": float(groups.sum()),
        "server/redrawn_batches": float(draw),
        "time/server_away": self._client.waited - begin_wait,
    }

  def _compare(self, sampling: Sampling) -> None:
    """Names, once, what the server says of its sampling and the run does not ask for."""
    self._compared, stated = True, {}
    with contextlib.suppress(ServerError):  # this version does not say it
      stated = self._client.with_retries(lambda: self._api.stated(self._client))
    body = completions.request("", (), 0, sampling, self._limits)
    if changes := control.differing(stated, body):
      logger.warning("server.url = %r says that it samples with %s, which the run does not ask "
                     "for. Fix: start it without, as jaxrl_llm/rollouts/server/README.md does",
                     self._cfg.url, ", ".join(changes))

  def _version(self) -> str | None:
    return self._client.with_retries(lambda: self._api.version(self._client))

  def _load(self, target: Weights) -> None:
    """Lets the server load these weights, unless it has them."""
    if not self._greeted:
      self._client.with_retries(lambda: control.greet(self._client, self._cfg.api))
      self._greeted = True
    version = self._version()
    if version == target.version:
      return
    if self._loaded == target.version:
      logger.warning("server.url = %r has weights %s and last loaded %s, so it was started again: "
                     "they are loaded once more", self._cfg.url, version, target.version)
    self._client.with_retries(
        lambda: self._api.load(self._client, str(target.folder), target.version))
    version = self._version()
    if version != target.version:
      raise ServerError(
          f"server.url = {self._cfg.url!r} has weights {version!r} after it was asked to load "
          f"{target.version!r} from {target.folder}. Fix: a server that reports weight_version, as "
          "jaxrl_llm/rollouts/server/README.md starts it, and that only this run loads.")
    self._loaded = target.version
    self._check_checksum(target.version)

  def _check_checksum(self, version: str) -> None:
    """Refuses a server whose own checksum, if it has one, is that of another version, or is no
    longer that of this one.
    """
    checksum = self._client.with_retries(lambda: self._api.checksum(self._client))
    if checksum is None:
      return
    for other, known in self._checksums.items():
      if (other == version) != (known == checksum):
        relation = ("differs from the one under the same version before" if other == version else
                    f"is that of its earlier weights {other}")
        raise ServerError(
            f"server.url = {self._cfg.url!r} says that it has weights {version}, and its own "
            f"checksum {checksum[:16]} of them {relation}. The last checkpoint is complete. Fix: a "
            "server that loads what it is told to, with the options that it was started with.")
    self._checksums[version] = checksum

  def _to_rollout(self, prompts: PromptBatch, completions: list[Completion]) -> Rollout:
    size = self._limits.max_new_tokens
    tokens = np.zeros((len(completions), size), np.int32)
    log_probs = np.zeros((len(completions), size), np.float32)
    for i, completion in enumerate(completions):
      tokens[i, :len(completion.tokens)] = completion.tokens
      log_probs[i, :len(completion.tokens)] = completion.log_probs
    sampled = Completions(tokens, log_probs,
                          np.array([len(c.tokens) for c in completions], np.int32),
                          np.array([c.reason for c in completions], np.int32))
    return assemble(prompts, sampled, pad_id=self._tokenizer.pad_token_id)
