"""Families of checkpoints: gradients, packing, windows and decoding; wrong networks fail."""

import copy
import dataclasses
import functools
import json
from pathlib import Path

import hf_checkpoints as hf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_for

from jaxrl_llm import config, register
from jaxrl_llm.config import (
  ConfigError,
  ModelConfig,
  ParametersConfig,
  RolloutConfig,
  SamplerConfig,
)
from jaxrl_llm.models import (
  CheckpointError,
  Model,
  blocked_attention,
  families,
  load_pretrained,
  row_attention,
  save_pretrained,
  trainable,
)
from jaxrl_llm.models.hf.tensor_names import by_path, tensor_table
from jaxrl_llm.rollouts import decode_attention, engine, generate, numerics
from jaxrl_llm.rollouts.engine import EngineConfig
from jaxrl_llm.types import PromptBatch, Sampling

NEW = ["mistral", "mistral_full", "olmo2", "olmo2_tied", "smollm3", "smollm3_untied", "gemma3",
       "gemma3_stretched"]
WINDOWED = ["mistral", "gemma3", "gemma3_stretched"]
LENGTH = 40


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
  """A function from a family to its checkpoint, which is written once."""
  return functools.cache(lambda name: hf.make(name, tmp_path_factory.mktemp(name)))


@functools.cache
def ids(rows=3, length=LENGTH):
  return np.random.default_rng(1).integers(0, hf.VOCAB, (rows, length))


def log_probs(model, params, tokens, positions=None, segments=None, shared=None):
  """[R, S, V] of the next token."""
  positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape) if positions is None else (
      positions)
  segments = np.ones_like(tokens) if segments is None else segments
  hidden, _ = model.hidden(params, tokens, positions, segments, shared=shared)
  return jax.nn.log_softmax(hidden @ model.head(params).astype(jnp.float32))


def error(ours, theirs) -> float:
  """Largest difference, relative to the largest value."""
  ours, theirs = np.asarray(ours), np.asarray(theirs)
  return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def their_gradients(network, tokens) -> tuple[float, dict[str, np.ndarray]]:
  """(mean loss of the next token, gradients by the tensor's name), by transformers, in the
  network's dtype.
  """
  import torch

  inputs = torch.as_tensor(tokens)
  network.zero_grad()
  loss = network(inputs, labels=inputs).loss
  loss.backward()
  return loss.item(), {name: p.grad.numpy().copy() for name, p in network.named_parameters()}


@pytest.mark.parametrize("name", quick_for({"gemma3", "olmo2"}, NEW))
def test_gradients(checkpoints, name):
  checkpoint = checkpoints(name)
  model, params, _ = load_pretrained(checkpoint.directory)

  @jax.jit
  def loss(params):
    found = log_probs(model, params, ids())[:, :-1]
    return -jnp.mean(jnp.take_along_axis(found, ids()[:, 1:, None], -1))

  value, gradients = jax.value_and_grad(loss)(params)
  rounded = their_gradients(checkpoint.network, ids())[1]
  expected, theirs = their_gradients(copy.deepcopy(checkpoint.network).double(), ids())
  assert abs(float(value) - expected) < 1e-4 * abs(expected)
  ours, compared = by_path(gradients), 0
  for entry in tensor_table(model):
    for index, tensor in entry.names:
      # Of a tied SmolLM3, transformers' own f32 gradient is 2.5e-4 from that in f64.
      bound = max(1e-4, error(rounded[tensor], theirs[tensor]))
      assert error(entry.to_stored(np.asarray(ours[entry.path][index])), theirs[tensor]) < bound, (
          tensor)
      compared += 1
  assert compared == len(theirs)


# Networks that differ from the checkpoint's in one trait.
WRONG = {
    "a window one too long": ("mistral", lambda c: {"window": c.window + 1}),
    "a window one too short": ("gemma3", lambda c: {"window": c.window - 1}),
    "no window": ("gemma3", lambda c: {"window": 0, "full_layers": (), "window_rope_base": None}),
    "a window in all layers": ("gemma3", lambda c: {"full_layers": ()}),
    "one base of all layers": ("gemma3", lambda c: {"window_rope_base": None}),
    "scores by the head's width": ("gemma3", lambda c: {"score_width": None}),
    "SiLU for GELU": ("gemma3", lambda c: {"activation": "silu"}),
    "norms by the scale alone": ("gemma3", lambda c: {"norm_offset": False}),
    "embeddings as they are": ("gemma3", lambda c: {"embedding_scale": False}),
    "a stretched local base": ("gemma3_stretched", lambda c: {
        "window_rope_base": None, "rope_base": c.window_rope_base}),
    "rotation in the fourth layer": ("smollm3", lambda c: {"no_rope_layers": ()}),
    "no rotation in the third": ("smollm3", lambda c: {"no_rope_layers": (2,)}),
}


@pytest.mark.parametrize("name, change", WRONG.values(), ids=WRONG)
def test_a_wrong_network_is_rejected(checkpoints, name, change):
  checkpoint = checkpoints(name)
  model, params, _ = load_pretrained(checkpoint.directory)
  expected = jax.nn.log_softmax(hf.logits(checkpoint.network, ids()))
  assert error(log_probs(model, params, ids()), expected) < 1e-4
  wrong = dataclasses.replace(model.config, **change(model.config))
  assert error(log_probs(Model(wrong), params, ids()), expected) > 1e-3


def test_norms_at_another_place_are_rejected(checkpoints):
  """OLMo 2's weights with its norms before, and with a norm of each head."""
  checkpoint = checkpoints("olmo2")
  model, params, _ = load_pretrained(checkpoint.directory)
  expected = jax.nn.log_softmax(hf.logits(checkpoint.network, ids()))
  assert error(log_probs(model, params, ids()), expected) < 1e-4
  for change in ({"norms": "before"}, {"wide_qk_norm": False}):
    blocks = {}
    for i, block in params["blocks"].items():
      norms = {"attention_norm": block["attention_out_norm"], "mlp_norm": block["mlp_out_norm"]}
      attention = dict(block["attention"])
      if "wide_qk_norm" in change:
        attention |= {n: {"scale": attention[n]["scale"][0]} for n in ("query_norm", "key_norm")}
      kept = {k: x for k, x in block.items() if "norms" not in change or "out_norm" not in k}
      blocks[i] = kept | (norms if "norms" in change else {}) | {"attention": attention}
    wrong = Model(dataclasses.replace(model.config, **change))
    found = log_probs(wrong, {**params, "blocks": blocks}, ids())
    assert error(found, expected) > 1e-2, change


def packed(tokens) -> tuple[np.ndarray, ...]:
  """Rows 1 and 2 of `tokens` in one row after a prompt, row 0's first 12, which both attend to.

  Returns:
    (tokens, positions, segments, shared) [1, 12 + 2 x 20].
  """
  prompt, ends = tokens[0, :12], [tokens[1, :20], tokens[2, :20]]
  positions = np.concatenate([np.arange(12), 12 + np.arange(20), 12 + np.arange(20)])
  segments = np.repeat([1, 2, 3], [12, 20, 20])
  return tuple(x[None].astype(np.int32) for x in (
      np.concatenate([prompt, *ends]), positions, segments, np.where(segments > 1, 1, -1)))


@pytest.mark.parametrize("kind", ["plain", "blocked"])
@pytest.mark.parametrize("name", quick_for({"gemma3"}, [*WINDOWED, "olmo2", "smollm3"]))
def test_packed_rows_that_share_a_prompt(checkpoints, name, kind, monkeypatch):
  """Each row as if it were alone; so are packed rows without a shared prompt."""
  monkeypatch.setattr(blocked_attention, "attend_blocks",
                      functools.partial(blocked_attention.attend_blocks, block=8))
  model, params, _ = load_pretrained(checkpoints(name).directory, attention=kind)
  tokens, positions, segments, shared = packed(ids())
  found = log_probs(model, params, tokens, positions, segments, shared)[0]
  apart = log_probs(model, params, tokens, positions - 12 * (segments > 1), segments)[0]
  wrong = log_probs(model, params, tokens, np.arange(52)[None], segments, shared)[0]
  differs = []
  for segment in (2, 3):
    columns = segments[0] == segment
    row = np.concatenate([tokens[0, :12], tokens[0, columns]])[None]
    alone = log_probs(model, params, row)[0, 12:]
    assert error(found[columns], alone) < 1e-4
    assert error(apart[columns], log_probs(model, params, row[:, 12:])[0]) < 1e-4
    differs.append(error(wrong[columns], alone))
  assert max(differs) > 1e-3, "the window and the rotation go by positions, not by columns"


def prompts() -> PromptBatch:
  """4 prompts of 1 to 17 tokens, each of 2 rows."""
  length = np.repeat([17, 1, 9, 5], 2)
  tokens = np.repeat(ids(4, 17), 2, 0)
  tokens = np.where(np.arange(17) < length[:, None], tokens, 0)
  rows = np.arange(8)
  return PromptBatch(*(x.astype(np.int32) for x in (tokens, length, rows, rows // 2)))


def assert_sampled_as_scored(model, params, rollout, tolerance=1e-4) -> None:
  """The full forward pass gives each sampled token the sampler's log-prob."""
  scored = log_probs(model, params, rollout.tokens, segments=(
      np.arange(rollout.tokens.shape[1]) < rollout.length[:, None]).astype(np.int32))
  scored = np.take_along_axis(np.asarray(scored[:, :-1]), rollout.tokens[:, 1:, None], -1)[..., 0]
  mask = rollout.mask[:, 1:]
  assert mask.sum() > 100
  np.testing.assert_allclose(rollout.behavior_log_probs[:, 1:][mask], scored[mask], atol=tolerance)


@pytest.mark.parametrize("shared_prefix", [False, True])
@pytest.mark.parametrize("name", quick_for({"gemma3", "mistral"}, [*WINDOWED, "olmo2", "smollm3"]))
def test_the_engine_reads_what_a_full_pass_reads(checkpoints, name, shared_prefix):
  model, params, _ = load_pretrained(checkpoints(name).directory)
  cfg = EngineConfig(group_size=2, max_new_tokens=30, window=16, stop_ids=(3,), pad_id=0, slots=4,
                     chunk=8, shared_prefix=shared_prefix)
  rollout, _ = engine.run(params, prompts(), jax.random.key(3), Sampling.of(1.0), model=model,
                          cfg=cfg)
  assert_sampled_as_scored(model, params, jax.device_get(rollout))


def sampled(model, params):
  cfg = SamplerConfig(group_size=2, max_new_tokens=30, window=8, stop_ids=(3,), pad_id=0)
  run = jax.jit(functools.partial(generate, model=model, cfg=cfg))
  return jax.device_get(run(params, prompts(), jax.random.key(3), Sampling.of(1.0)))


@pytest.mark.parametrize("name", quick_for({"gemma3", "mistral"}, [*WINDOWED, "olmo2", "smollm3"]))
def test_a_group_samples_what_a_full_pass_reads(checkpoints, name):
  model, params, _ = load_pretrained(checkpoints(name).directory)
  assert_sampled_as_scored(model, params, sampled(model, params))


@pytest.mark.parametrize("name", quick_for({"olmo2"}, NEW))
def test_adapters_are_trained_and_exported(checkpoints, name, tmp_path):
  """Every adapter has a gradient; transformers reads what the merged network computes."""
  model, params, _ = load_pretrained(checkpoints(name).directory)
  cfg = ParametersConfig("lora", lora_rank=2)
  trained, frozen = trainable.split(params, cfg, jax.random.key(0))
  trained = jax.tree.map(lambda x: x + 0.1 * jnp.cos(7.0 * jnp.arange(x.size).reshape(x.shape)),
                         trained)

  def loss(trained):
    return jnp.mean(log_probs(model, trainable.merge(trained, frozen, cfg), ids())[..., 5])

  gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(trained))
  assert len(gradients) == 14 * model.config.num_layers
  assert all(float(jnp.abs(x).max()) > 0 for x in gradients)
  merged = trainable.merge(trained, frozen, cfg)
  save_pretrained(tmp_path / "out", model, merged)
  theirs = jax.nn.log_softmax(hf.logits(hf.reload(tmp_path / "out"), ids()))
  assert error(log_probs(model, merged, ids()), theirs) < 1e-4
  assert error(log_probs(model, params, ids()), theirs) > 1e-2


@pytest.mark.parametrize("name", quick_for((), ["mistral", "olmo2", "gemma3"]))
def test_int8_is_as_near_as_its_rounding(checkpoints, name):
  """Weights held as int8 decode as rounded ones are scored; an int8 cache changes little."""
  model, params, _ = load_pretrained(checkpoints(name).directory)
  rounded = numerics.rollout_numerics(model, params, RolloutConfig(quantization="int8"))[1]
  stored = numerics.rollout_numerics(model, params, RolloutConfig(quantization="int8_weights"))
  assert_sampled_as_scored(model, rounded, sampled(*stored))
  cached = numerics.rollout_model(model, RolloutConfig(cache_dtype="int8"))
  assert_sampled_as_scored(model, params, sampled(cached, params), 0.5)


REFUSED = {
    "soft caps": ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    "both directions": ("gemma3", {"use_bidirectional_attention": True},
                        "use_bidirectional_attention"),
    "another activation": ("gemma3", {"hidden_activation": "relu"}, "hidden_act = 'relu'"),
    "windows of SmolLM3": ("smollm3", {"layer_types": ["sliding_attention"] * 4},
                           "sliding-window attention in use"),
    "another shape": ("olmo2", {"model_type": "olmo"}, "model_type = 'olmo' is not supported"),
}


@pytest.mark.parametrize("name, change, message", REFUSED.values(), ids=REFUSED)
def test_what_a_family_lacks_is_refused(tmp_path, name, change, message):
  directory = hf.make(name, tmp_path / "in").directory
  content = json.loads((directory / "config.json").read_text())
  (directory / "config.json").write_text(json.dumps(content | change))
  with pytest.raises(CheckpointError, match=message):
    load_pretrained(directory)


def test_kernels_without_windows_are_refused_and_not_chosen():
  cfg = ModelConfig(window=512, compute_dtype="bfloat16", head_dim=128)
  assert row_attention.choose(cfg, 4096, "gpu", row_attention.ONE, 512) == "blocked"
  assert row_attention.choose(cfg, 4096, "tpu", row_attention.PACKED, 512) == "splash"
  with pytest.raises(ConfigError, match=r"model\.window = 512: its kernel has no sliding window"):
    row_attention.check(dataclasses.replace(cfg, attention="cudnn"), "gpu")
  assert decode_attention.heads_side_by_side("auto", Model(cfg), 512, compare=False) == 0
  with pytest.raises(ConfigError, match=r"kernel with model\.window = 512"):
    decode_attention.heads_side_by_side("kernel", Model(cfg), 512, compare=False)


def test_layers_of_two_kinds_are_not_stacked(checkpoints):
  for name in ("gemma3", "smollm3"):
    with pytest.raises(CheckpointError, match=r"cannot be stacked\. Fix: model\.scan_layers=False"):
      load_pretrained(checkpoints(name).directory, scan_layers=True)
  load_pretrained(checkpoints("mistral").directory, scan_layers=True)


def test_every_family_of_the_package_has_a_checkpoint():
  assert {kind for kind, _ in hf.FAMILIES.values()} == set(families.names())


PLUGIN = Path(__file__).parents[3] / "experiments/extend/family.py"


def test_a_plugin_registers_a_family(tmp_path, monkeypatch):
  """OLMo 3 in one file: read, compared with transformers, written and read back."""
  kind = ("olmo3", dict(tie_word_embeddings=False, num_hidden_layers=4, sliding_window=6,
                        rope_parameters={"full_attention": hf.YARN,
                                         "sliding_attention": {"rope_type": "default",
                                                               "rope_theta": 1e4}}))
  monkeypatch.setitem(hf.FAMILIES, "olmo3", kind)
  checkpoint = hf.make("olmo3", tmp_path / "in")
  with pytest.raises(CheckpointError, match="model_type = 'olmo3' is not supported"):
    load_pretrained(checkpoint.directory)
  config.load_plugins((str(PLUGIN),))
  try:
    model, params, report = load_pretrained(checkpoint.directory)
    expected = jax.nn.log_softmax(hf.logits(checkpoint.network, ids()))
    assert error(log_probs(model, params, ids()), expected) < 1e-4
    assert report.model_type == "olmo3" and model.config.full_layers == (3,)
    save_pretrained(tmp_path / "out", model, params)
    assert error(jax.nn.log_softmax(hf.logits(hf.reload(tmp_path / "out"), ids())), expected) < 1e-6
    with pytest.raises(ValueError, match="family 'olmo3' is registered already"):
      register.family("olmo3")(families.Family)
  finally:
    del families.FAMILIES.entries["olmo3"]
