"""The sections of a run that say how completions are sampled, and by what."""

import dataclasses
import functools
import re
import urllib.parse

from jaxrl_llm.fields import DEFAULT, ConfigError, option, when

ENGINE, TURNS = when(".slots"), when(".max_turns")
HERE, SERVED = when("server.url", "", text="an empty server.url"), when(".url")


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
  """Settings of sampling."""

  prompts: int = option(32, "prompts per iteration", low=1, high=10**6)
  group_size: int = option(8, "G, completions per prompt", low=1, high=10**5)
  max_prompt_tokens: int = option(16, "prompt part of a row, tokens; auto: the longest prompt "
                                 "of the data", low=1, auto=True)
  max_new_tokens: int = option(48,
                               "completion part of a row, tokens; longer completions are truncated",
                               low=1, high=10**7)
  min_new_tokens: int = option(
      0, "forbids stop tokens before this many completion tokens, in sampler and loss", low=0)
  temperature: float = option(1.0, "sampling temperature; the loss uses the same", low=1e-3,
                              high=100.0)
  window: int = option(32, "decode steps between two growths of the attended cache", low=1)
  slots: int = option(0, "completions that decode at once; a finished one frees its slot "
                      "for the next (rollouts/engine.py). 0: one program for all", low=0,
                      when=HERE)
  chunk: int = option(32, "decode steps between two checks for finished completions", low=1,
                      when=ENGINE)
  shared_prefix: bool = option(False, "keeps one copy of a prompt's cache for its group",
                               when=(ENGINE, when(".group_size", above=1)))
  engine_per_device: bool = option(
      False,
      "each device decodes completions of its own, and waits for no other (rollouts/engines.py); "
      "slots are those of all", when=ENGINE)
  decode_attention: str = option(
      "auto", "how a token step reads the cache (rollouts/decode_attention.py): kernel, the columns"
      " in which rows have tokens, on a TPU; windowed, those up to the longest row's end. auto: "
      "kernel where it serves the model's heads", choices=("auto", "kernel", "windowed"),
      when=ENGINE)
  stop_strings: tuple = option((),
                               "texts that end a completion; the verifier reads what precedes them",
                               when=(ENGINE, when(".max_turns", 0)))
  max_turns: int = option(
      0, "policy turns of a completion, for a task with a tool; 0: one turn, no tool",
                          low=0, when=ENGINE)
  max_turn_tokens: int | None = option(None,
                                       "tokens of one turn; none: what the completion has left",
                                       low=1, when=TURNS)
  max_tool_tokens: int = option(256, "tokens that one tool answer may add", low=1, when=TURNS)
  tool_chunks: int | None = option(
      1, "decode chunks until a tool's answer is entered; a run is then reproducible bit for bit. "
      "none: as soon as it comes, which is faster with slow tools and not reproducible", low=0,
      when=TURNS)
  tool_workers: int = option(4, "calls answered at once, and workers of the Python sandbox", low=1,
                             high=1024, when=TURNS)
  dtype: str = option(DEFAULT, "dtype of the sampler's activations and products; default: "
                      "model.compute_dtype", choices=(DEFAULT, "float32", "bfloat16"))
  cache_dtype: str = option(DEFAULT, "dtype of the sampler's keys and values; default: "
                            "rollout.dtype; int8 has a scale for each token and head, and changes "
                            "what is sampled", choices=(DEFAULT, "float32", "bfloat16", "int8"))
  quantization: str = option(
      "none", "the sampler's attention and MLP matrices: int8 rounds them only; int8_weights also "
      "holds them so; int8_products rounds activations too, and multiplies integers "
      "(rollouts/numerics.py)", choices=("none", "int8", "int8_weights", "int8_products"),
      when=HERE)
  logit_noise: float = option(0.0, "standard deviation of normal noise on the sampler's logits, a "
                              "stand-in for an engine of other numerics", low=0.0, when=HERE)
  backend: str = option(DEFAULT, "what samples the training rollouts (rollouts/backends.py): "
                        "engine, on the run's devices; server; or a plugin's. default: server "
                        "where server.url is set, else engine")
  routing: bool = option(
      False, "keeps the experts that the sampler chose, and each pass of the trainer takes them in "
      "place of its own choice; their weights stay the router's (routing replay)", when=(when(
          "model.num_experts"), when(".slots", 0), when(".backend", DEFAULT, "engine"), HERE))
  meter_rows: int = option(
      8, "completions scored for the mismatch meter where no other pass serves; 0: "
                           "no meter", low=0)

  def check(self, cfg) -> None:
    """Refuses lengths and texts at which no completion ends, and rows that do not divide over
    `mesh.sequence`.
    """
    if self.min_new_tokens > self.max_new_tokens:
      raise ConfigError(
          f"rollout.min_new_tokens = {self.min_new_tokens}: a completion ends at "
          f"rollout.max_new_tokens = {self.max_new_tokens}. Fix: choose 0 to "
          f"{self.max_new_tokens}.")
    if not all(self.stop_strings):
      raise ConfigError(
          f"rollout.stop_strings = {self.stop_strings!r}: an empty text is in every completion. "
          "Fix: remove it.")
    if cfg.updates.in_flight and self.max_turns and self.tool_chunks is None:
      raise ConfigError(
          "rollout.tool_chunks = None with updates.in_flight = True: which groups end first would "
          "depend on the tool's speed, and a run could not be resumed. Fix: rollout.tool_chunks=1.")
    shards = cfg.mesh.sequence
    if self.row_length % shards:
      raise ConfigError(
          f"mesh.sequence = {shards} does not divide the {self.row_length} tokens of "
          "rollout.max_prompt_tokens + rollout.max_new_tokens. Fix: rollout.max_prompt_tokens="
          f"{self.max_prompt_tokens + -self.row_length % shards}.")

  @functools.cached_property
  def rows(self) -> int:
    """Completions of an iteration."""
    return self.prompts * self.group_size

  @functools.cached_property
  def row_length(self) -> int:
    """Tokens of a row, prompt and completion."""
    return self.max_prompt_tokens + self.max_new_tokens

  @property
  def group_tokens(self) -> int:
    """Tokens of a group whose rows share the prompt but for its last token, which each repeats."""
    return self.max_prompt_tokens + self.group_size * (self.max_new_tokens + 1)


@dataclasses.dataclass(frozen=True)
class RolloutFilesConfig:
  """The data of completions that is kept in the run's folder (reporting/token_columns.py)."""

  every: int = option(1, "iterations between two whose completions are written", low=1)
  rows: int = option(0, "completions that each process writes of an iteration, the first ones, in "
                     "whole groups; 0: all", low=0)
  keep: int = option(0, "iterations whose completions are kept, the newest; 0: all", low=0)


@dataclasses.dataclass(frozen=True)
class ServerConfig:
  """An HTTP server that samples the training rollouts (rollouts/server/README.md)."""

  url: str = option("", "address, such as http://host:8000; empty: the run samples on its devices")
  api: str = option("vllm", "how it is asked to load weights", choices=("vllm", "sglang"),
                    when=SERVED)
  folder: str = option("", "folder, seen by run and server at the same path, through which weights "
                       "are handed over", when=SERVED)
  in_flight: int = option(64, "requests at once, a completion each", low=1, when=SERVED)
  timeout: float = option(600.0, "seconds in which a request must be answered", low=1.0,
                          when=SERVED)
  patience: float = option(600.0, "seconds without any answer for which the run pauses before it "
                           "ends", low=0.0, when=SERVED)

  def check(self, cfg) -> None:
    """Refuses an address that is none, and numerics of a sampler that is not used."""
    if not self.url:
      return
    if not _is_address(self.url):
      raise ConfigError(f"server.url = {self.url!r}: allowed is http:// or https://, a host, and a "
                        "port of 1 to 65535. Fix: an address such as http://host:8000.")
    if not self.folder:
      raise ConfigError("server.folder is empty: weights are handed over through a folder. Fix: "
                        "one that run and server see at the same path.")
    if "://" in self.folder:
      raise ConfigError(f"server.folder = {self.folder!r}: weights are handed over by renaming a "
                        "folder, which a bucket has not. Fix: a folder that both sides see.")
    for name in ("dtype", "cache_dtype"):
      value = getattr(cfg.rollout, name)
      if value not in (DEFAULT, cfg.model.compute_dtype):
        raise ConfigError(
            f"rollout.{name} = {value!r}: it is read only with an empty server.url; the server has "
            f"numerics of its own. Fix: leave rollout.{name} out, or an empty server.url.")


def _is_address(url: str) -> bool:
  """Returns whether a text is a valid HTTP address."""
  try:
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname, parts.port
  except ValueError:  # an open bracket, a port out of range
    return False
  pattern = r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?"
  return parts.scheme in ("http", "https") and bool(re.fullmatch(pattern, host or "")) and port != 0


@dataclasses.dataclass(frozen=True)
class DynamicSamplingConfig:
  """Drops groups whose rewards are all equal, and samples others instead (DAPO)."""

  enabled: bool = option(False, "drops groups with equal rewards, and samples others")
  max_draws: int = option(10, "rollout batches sampled for one iteration before the run stops",
                          low=1, when=when(".enabled"))
