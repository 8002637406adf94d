"""lm-eval hears of our model what it hears of transformers' program of the same checkpoint."""

import json

import jax
import numpy as np
import pytest

from jaxrl_llm.config import ModelConfig
from jaxrl_llm.models import Model, hf
from jaxrl_llm.tasks.tokenizer import byte_tokenizer

pytest.importorskip("lm_eval", reason="needs the extra [lm-eval]")
lm_harness = pytest.importorskip("experiments.commands.lm_harness")

SHAPES = ModelConfig(vocab_size=258, width=32, num_layers=2, num_heads=2, num_kv_heads=1,
                     head_dim=16, mlp_width=48)
POSITIONS = 96
PAIRS = [("The sum is", " 12"), ("", "twelve"), ("A", "b"), ("ends in spaces  ", "x"),
         ("äö " * 9, "ü"), ("long " * 30, "continuation"), ("", "one"), ("q", "r" * 20)]
TEXTS = ["a rolling text of more tokens than a row may have, so that windows are needed: " * 3, "b"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  folder = tmp_path_factory.mktemp("checkpoint")
  model = Model(SHAPES)
  params = jax.tree.map(lambda x: 2 * x, model.init(jax.random.key(0)))
  hf.save_pretrained(folder, model, params, tokenizer=byte_tokenizer())
  config = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": POSITIONS}))
  return str(folder)


@pytest.fixture(scope="module")
def ours(checkpoint):
  return lm_harness.PolicyLM(pretrained=checkpoint, batch_size=3)


@pytest.fixture(scope="module")
def theirs(checkpoint):
  from lm_eval.models.huggingface import HFLM
  return HFLM(pretrained=checkpoint, device="cpu", dtype="float32", batch_size=1)


def asked(kind: str, *arguments: tuple):
  from lm_eval.api.instance import Instance
  return [Instance(kind, {}, values, i) for i, values in enumerate(arguments)]


def scores(model) -> np.ndarray:
  return np.array(model.loglikelihood(asked("loglikelihood", *PAIRS)))


def texts(model, **settings) -> list[str]:
  requests = [(context or "z", {"max_gen_toks": 24, "do_sample": False} | settings)
              for context, _ in PAIRS]
  return model.generate_until(asked("generate_until", *requests))


class Shifted(lm_harness.PolicyLM):
  """A wrong one: the context's last token counts as the first of the continuation."""

  def _scores(self, contexts, continuations):
    return super()._scores([c[:-1] or c for c in contexts],
                           [c[-1:] + rest if len(c) > 1 else rest
                            for c, rest in zip(contexts, continuations, strict=True)])


def test_scores_are_those_of_transformers(ours, theirs):
  expected, wrong = scores(theirs), object.__new__(Shifted)
  np.testing.assert_allclose(scores(ours), expected, atol=2e-4)
  wrong.__dict__ |= vars(ours)
  assert np.abs(scores(wrong) - expected)[:, 0].max() > 0.1
  rolling = asked("loglikelihood_rolling", *((text,) for text in TEXTS))
  np.testing.assert_allclose(ours.loglikelihood_rolling(rolling),
                             theirs.loglikelihood_rolling(rolling), rtol=1e-5)


def test_texts_are_those_of_transformers(ours, theirs, monkeypatch):
  """A wrong one leaves what follows a stop string."""
  free = texts(theirs)
  assert texts(ours) == free and len(set(free)) > 3
  until = [free[0][5:7], free[3][8]]
  stopped = texts(theirs, until=until)
  assert texts(ours, until=until) == stopped != free
  monkeypatch.setattr(lm_harness, "postprocess_generated_text", lambda text, until, think: text)
  assert texts(ours, until=until) != stopped
