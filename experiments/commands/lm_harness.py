"""A checkpoint or a run as a model of EleutherAI's lm-eval, called `jaxrl_llm` there.

experiments/harness.py is lm-eval's command with it. Rows are sampled by the engine and scored by
`row_stats`, as in a run, so that lm-eval's numbers are of the programs that train.
"""

import functools
import json
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from experiments.commands import saved
from jaxrl_llm import parallel
from jaxrl_llm.config import MeshConfig, PromptConfig, RolloutConfig
from jaxrl_llm.fields import ConfigError
from jaxrl_llm.models import Model, hf
from jaxrl_llm.objective.row_stats import Distribution, row_stats
from jaxrl_llm.rollouts import hand_over
from jaxrl_llm.rollouts.engine_sampler import Rows, sampler_on
from jaxrl_llm.rollouts.turn_ends import StopStrings
from jaxrl_llm.tasks import chat_templates
from jaxrl_llm.tasks.encoding import encode
from jaxrl_llm.tasks.tokenizer import load_tokenizer, stop_ids
from jaxrl_llm.types import Params, PromptBatch, Sampling

NAME = "jaxrl_llm"  # of the model, in lm-eval
NEW_TOKENS = 256  # of a completion whose task names no limit, as in lm-eval
POSITIONS = 2048  # of a checkpoint whose config.json names no limit
WIDTH, SPAN = 64, 16  # rows, and scored tokens, are padded to multiples, for few programs
READ = {"do_sample", "temperature", "top_k", "top_p", "min_p"}  # of a task's generation_kwargs


class Policy(NamedTuple):
  """Parameters with what reads and writes their text.

  Attributes:
    params: of `model`, on `mesh`.
    stop_ids: tokens that end a completion.
    positions: tokens of a row at most.
  """

  model: Model
  params: Params
  tokenizer: object
  stop_ids: tuple[int, ...]
  mesh: Mesh
  positions: int


def of_directory(path: str, dtype: str | None, compute_dtype: str) -> Policy:
  """Returns the policy of a Hugging Face directory, a GGUF file, an adapter or a name on the hub.

  Raises:
    CheckpointError, ConfigError: it cannot be read.
  """
  mesh, directory = parallel.make_mesh(MeshConfig()), hf.base_directory(path)
  model, params, _ = hf.load_pretrained(path, mesh=mesh, dtype=dtype, compute_dtype=compute_dtype)
  tokenizer = load_tokenizer(directory)
  return Policy(model, params, tokenizer, stop_ids(tokenizer, directory), mesh,
                hf.position_limit(directory) or POSITIONS)


def of_run(workdir: str, checkpoint: str | int, plugins: str) -> Policy:
  """Returns the policy of a run's checkpoint; raises as `saved.restore_trained`."""
  cfg, task, learner = saved.build_learner(workdir, plugins=plugins)
  params = saved.restore_trained(cfg, learner, workdir, checkpoint)[1]
  limit = hf.position_limit(hf.base_directory(cfg.pretrained)) if cfg.pretrained else None
  return Policy(learner.model, params, task.tokenizer, tuple(task.stop_ids), learner.mesh,
                limit or cfg.rollout.row_length)


@register_model(NAME)
class PolicyLM(TemplateLM):
  """Answers lm-eval's requests.

  Args:
    pretrained: a checkpoint, or
    workdir: a run's folder; one of the two.
    checkpoint: of a run: an iteration, `latest` or `best`.
    plugins: of a run: `run` imports the plugins that its config names.
    batch_size: rows at once; changes speed and memory only.
    max_length: tokens of a row at most, of a longer one the end is read; None: as the checkpoint
      says.
    dtype: of a checkpoint's parameters; None: the file's.
    compute_dtype: of a checkpoint's activations.
    seed: of the samples, where a task samples.

  Raises:
    ConfigError: none or both of `pretrained` and `workdir`, or as `of_directory` and `of_run`.
  """

  def __init__(self, *, pretrained: str = "", workdir: str = "",
               checkpoint: str | int = "latest", plugins: str = "", batch_size: int | str = 32,
               max_length: int | None = None, dtype: str | None = None,
               compute_dtype: str = "float32", seed: int = 0):
    super().__init__()
    if bool(pretrained) == bool(workdir):
      raise ConfigError(
          f"--model_args: pretrained={pretrained!r} and workdir={workdir!r}: one of them says "
          "whose parameters are evaluated. Fix: pretrained=<a checkpoint>, or workdir=<a run's "
          "folder>.")
    if not str(batch_size).isdigit() or int(batch_size) < 1:
      raise ConfigError(f"--batch_size={batch_size}: allowed are whole numbers from 1. Fix: such "
                        "as 32.")
    self._policy = (of_run(workdir, checkpoint, plugins) if workdir else
                    of_directory(pretrained, dtype, compute_dtype))
    self.tokenizer, self.max_length = self._policy.tokenizer, max_length or self._policy.positions
    self._batch_size, self._seed, mesh = int(batch_size), seed, self._policy.mesh
    self._rows_mesh = parallel.row_mesh(mesh)
    self._decoding = hand_over.make(self._policy.model, self._rows_mesh)

  @property
  def eot_token_id(self) -> int:
    return self.tokenizer.eos_token_id

  @property
  def prefix_token_id(self) -> int:
    """The token before a text without a context: the beginning of a sequence, else its end."""
    start = self.tokenizer.bos_token_id
    return self.eot_token_id if start is None else start

  @property
  def tokenizer_name(self) -> str:
    return str(self.tokenizer.name_or_path).replace("/", "__")

  def apply_chat_template(self, chat_history: list[dict[str, str]],
                          add_generation_prompt: bool = True) -> str:
    """Returns the text of a dialogue, at the date at which runs render it."""
    template = chat_templates.dated(chat_templates.source(self.tokenizer), PromptConfig.date)
    return self.tokenizer.apply_chat_template(
        chat_history, tokenize=False, chat_template=template,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=not add_generation_prompt)

  def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_) -> list[int]:
    """Returns the ids of a text, with the tokenizer's own beginning unless the text has it."""
    start = self.tokenizer.bos_token
    if add_special_tokens is None:
      add_special_tokens = not (start and string.startswith(start))
    return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

  def _loglikelihood_tokens(self, requests, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
    """Returns (log-prob in nats, whether greedy decoding gives it) of each continuation.

    Args:
      requests: ((context, continuation), ids of the context, ids of the continuation).

    Raises:
      ConfigError: a continuation is longer than a row may be.
    """
    del disable_tqdm
    answers: list = [None] * len(requests)
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i][1]) - len(requests[i][2]))
    for begin in range(0, len(order), self._batch_size):
      batch = order[begin:begin + self._batch_size]
      scored = self._scores([requests[i][1] for i in batch], [requests[i][2] for i in batch])
      for i, answer in zip(batch, scored, strict=True):
        answers[i] = answer
        if requests[i][0] is not None:
          self.cache_hook.add_partial("loglikelihood", requests[i][0], answer)
    return answers

  def _scores(self, contexts: list[list[int]],
              continuations: list[list[int]]) -> list[tuple[float, bool]]:
    longest = max(map(len, continuations))
    if longest > self.max_length:
      raise ConfigError(f"a continuation has {longest} tokens; max_length = {self.max_length}. "
                        "Fix: --model_args max_length=..., or a task with shorter texts.")
    rows = [(context + continuation)[-(self.max_length + 1):]
            for context, continuation in zip(contexts, continuations, strict=True)]
    length = np.array([len(row) for row in rows], np.int32)
    first = length - np.array([len(c) for c in continuations], np.int32)
    arrays = self._padded(_joined(rows, self.tokenizer.pad_token_id), length, first)
    span = -(-longest // SPAN) * SPAN
    with jax.default_matmul_precision("highest"):
      total, greedy = _scored(self._policy.params, *arrays, model=self._policy.model, span=span)
    return [(float(total[i]), bool(greedy[i])) for i in range(len(rows))]

  def _padded(self, *arrays: np.ndarray) -> list[jax.Array]:
    """Repeats the last row up to the size of a batch, or to a few rows, and divides the rows over
    the devices.
    """
    count = len(arrays[0])
    size = min(self._batch_size, 1 << (count - 1).bit_length())
    index = np.minimum(np.arange(parallel.padded(size, self._rows_mesh)), count - 1)
    return [parallel.to_global(x[index], self._policy.mesh) for x in arrays]

  def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
    """Returns the log-prob of each text, read in windows of `max_length` tokens."""
    del disable_tqdm
    answers = []
    for request in requests:
      windows = map(make_disjoint_window, get_rolling_token_windows(
          token_list=self.tok_encode(request.args[0]), prefix_token=self.prefix_token_id,
          max_seq_len=self.max_length, context_len=1))
      scored = self._loglikelihood_tokens([(None, *window) for window in windows])
      answers.append(sum(log_prob for log_prob, _ in scored))
      self.cache_hook.add_partial("loglikelihood_rolling", request.args, answers[-1])
    return answers

  def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
    """Returns the text of each completion up to its first stop string.

    Raises:
      ConfigError: generation_kwargs that no sampler here reads.
    """
    del disable_tqdm
    answers, of_settings = [""] * len(requests), {}
    for i, request in enumerate(requests):
      of_settings.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
    for text, indices in of_settings.items():
      settings = normalize_gen_kwargs(json.loads(text), NEW_TOKENS)
      until, new_tokens = settings.pop("until"), settings.pop("max_gen_toks")
      prompts = [self.tok_encode(requests[i].args[0])[-self._room(new_tokens):] for i in indices]
      sampled = self._completions(prompts, indices, until, new_tokens, _sampling(settings))
      for i, ids in zip(indices, sampled, strict=True):
        answers[i] = postprocess_generated_text(
            self.tokenizer.decode(ids, skip_special_tokens=True), until, None)
        self.cache_hook.add_partial("generate_until", requests[i].args, answers[i])
    return answers

  def _room(self, new_tokens: int) -> int:
    if new_tokens < self.max_length:
      return self.max_length - new_tokens
    raise ConfigError(f"max_gen_toks = {new_tokens} leaves no room for a prompt in max_length = "
                      f"{self.max_length}. Fix: --gen_kwargs max_gen_toks=..., or --model_args "
                      "max_length=...")

  def _completions(self, prompts: list[list[int]], row_ids: Sequence[int], until: Sequence[str],
                   new_tokens: int, sampling: Sampling) -> list[list[int]]:
    """Returns the ids of each prompt's completion, without the stop token."""
    # lm-eval's stop strings may be tokens that leave no text.
    special = [ids[0] for ids in (encode(self.tokenizer, text) for text in until if text)
               if len(ids) == 1 and ids[0] in self.tokenizer.all_special_ids]
    stops = tuple(dict.fromkeys((*self._policy.stop_ids, *special)))
    strings = tuple(text for text in until if text)
    slots = parallel.padded(min(self._batch_size, len(prompts)), self._rows_mesh)
    cfg = RolloutConfig(max_new_tokens=new_tokens, window=min(WIDTH, new_tokens), slots=slots)
    rows = Rows(cfg, 1, stops, self.tokenizer.pad_token_id,
                StopStrings(self.tokenizer, strings, eos_ids=stops) if strings else None)
    count = parallel.padded(len(prompts), self._rows_mesh)
    index = np.minimum(np.arange(count), len(prompts) - 1)
    host = PromptBatch(_joined(prompts, self.tokenizer.pad_token_id)[index],
                       np.array([len(prompt) for prompt in prompts], np.int32)[index],
                       np.asarray(row_ids, np.int32)[index], np.arange(count, dtype=np.int32))
    sample = sampler_on(self._rows_mesh, self._rows_mesh, self._policy.model, rows)
    rollout, _ = sample(self._decoding(self._policy.params),
                        parallel.to_global(host, self._rows_mesh), jax.random.key(self._seed),
                        sampling)
    host_rollout = jax.device_get(rollout)
    completions = [host_rollout.tokens[i, begin:end].tolist()
                   for i, (begin, end) in enumerate(zip(
                       host_rollout.prompt_length, host_rollout.length, strict=True))]
    return [ids[:-1] if ids and ids[-1] in stops else ids
            for ids in completions[:len(prompts)]]


@functools.partial(jax.jit, static_argnames=("model", "span"))
def _scored(params, tokens, length, first, *, model, span: int):
  """Returns (log-prob [B] of the tokens from `first` on, nats; whether each is the likeliest [B]).

  Args:
    tokens: [B, L] int32, padded after `length` [B].
    first: [B], not before 1: no token predicts the first.
    span: scored tokens of a row at most.
  """
  stats = functools.partial(row_stats, params, tokens, length, model=model,
                            completion=(first, span))
  columns = jnp.arange(tokens.shape[1])
  read = (columns >= first[:, None]) & (columns < length[:, None])
  likeliest = stats(distribution=Distribution(rules={"top_k": jnp.int32(1)}),
                    stats=frozenset({"in_support"}))
  return (jnp.sum(jnp.where(read, stats().log_probs, 0.0), 1),
          jnp.all(likeliest.in_support | ~read, 1))


def _joined(rows: list[list[int]], pad: int) -> np.ndarray:
  """Returns [B, L] int32, each row padded after its end; L is a multiple of WIDTH."""
  width = -(-max(map(len, rows)) // WIDTH) * WIDTH
  return np.array([row + [pad] * (width - len(row)) for row in rows], np.int32)


def _sampling(settings: dict) -> Sampling:
  """Returns the sampling of a task's generation_kwargs, as `normalize_gen_kwargs` returns them.

  Raises:
    ConfigError: naming one that is not read.
  """
  unread = sorted(settings.keys() - READ)
  if unread:
    raise ConfigError(
        f"generation_kwargs: {unread[0]} = {settings[unread[0]]!r} is not read; read are until, "
        f"max_gen_toks, {', '.join(sorted(READ))}. Fix: --gen_kwargs, or the task's YAML, "
        "without it.")
  if not settings["do_sample"]:
    return Sampling.of(0.0)
  return Sampling.of(settings.get("temperature", 1.0), top_k=settings.get("top_k", 0),
                     top_p=settings.get("top_p", 1.0), min_p=settings.get("min_p", 0.0))
