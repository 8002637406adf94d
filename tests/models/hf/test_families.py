"""Families of checkpoints: gradients, packing, windows and decoding; wrong networks fail."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suites import quick_of

from experiments.families import checkpoints as hf
from experiments.families import comparison, parity
from experiments.families.comparison import ids, log_probs, packed_rows, relative_error, sampled
from jaxrl_llm import config
from jaxrl_llm.config import ConfigError, ModelConfig, RolloutConfig
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
from jaxrl_llm.rollouts import numerics

NEW = ["mistral", "mistral_full", "olmo2", "olmo2_tied", "smollm3", "smollm3_untied", "gemma3",
       "gemma3_stretched"]
CACHED = ["mistral", "gemma3", "gemma3_stretched", "olmo2", "smollm3"]
# Slow: a network of each architecture. Nightly: variants of their numbers.
SLOW = {"mistral", "olmo2", "smollm3", "gemma3"}


def of_families(quick, families):
  """Returns the marked cases of a test with these families, `quick` in the quick suite."""
  return quick_of(quick, {name: (name,) for name in families}, SLOW.intersection(families))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
  """A function from a family to its checkpoint, which is written once."""
  return functools.cache(lambda name: hf.make(name, tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize("name", of_families({"gemma3", "olmo2"}, NEW))
def test_gradients(checkpoints, name):
  for tensor, (ours, theirs) in comparison.gradient_errors(checkpoints(name)).items():
    # Of a tied SmolLM3, transformers' own f32 gradient is 2.5e-4 from that in f64.
    assert ours < max(1e-4, theirs), tensor


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
  assert relative_error(log_probs(model, params, ids()), expected) < 1e-4
  wrong = dataclasses.replace(model.config, **change(model.config))
  assert relative_error(log_probs(Model(wrong), params, ids()), expected) > 1e-3


def test_norms_at_another_place_are_rejected(checkpoints):
  """OLMo 2's weights with its norms before, and with a norm of each head."""
  checkpoint = checkpoints("olmo2")
  model, params, _ = load_pretrained(checkpoint.directory)
  expected = jax.nn.log_softmax(hf.logits(checkpoint.network, ids()))
  assert relative_error(log_probs(model, params, ids()), expected) < 1e-4
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
    scores = log_probs(wrong, {**params, "blocks": blocks}, ids())
    assert relative_error(scores, expected) > 1e-2, change


@pytest.mark.parametrize("kind", ["plain", "blocked"])
@pytest.mark.parametrize("name", of_families({"gemma3"}, CACHED))
def test_packed_rows_that_share_a_prompt(checkpoints, name, kind, monkeypatch):
  """Each row as if it were alone; so are packed rows without a shared prompt."""
  monkeypatch.setattr(blocked_attention, "attend_blocks",
                      functools.partial(blocked_attention.attend_blocks, block=8))
  model, params, _ = load_pretrained(checkpoints(name).directory, attention=kind)
  tokens, positions, segments, shared = packed_rows(ids())
  scores = log_probs(model, params, tokens, positions, segments, shared)[0]
  apart = log_probs(model, params, tokens, positions - 12 * (segments > 1), segments)[0]
  wrong = log_probs(model, params, tokens, np.arange(52)[None], segments, shared)[0]
  differs = []
  for segment in (2, 3):
    columns = segments[0] == segment
    row = np.concatenate([tokens[0, :12], tokens[0, columns]])[None]
    alone = log_probs(model, params, row)[0, 12:]
    assert relative_error(scores[columns], alone) < 1e-4
    assert relative_error(apart[columns], log_probs(model, params, row[:, 12:])[0]) < 1e-4
    differs.append(relative_error(wrong[columns], alone))
  assert max(differs) > 1e-3, "the window and the rotation go by positions, not by columns"


def assert_sampled_as_scored(model, params, rollout, tolerance=1e-4) -> None:
  """The full forward pass gives each sampled token the sampler's log-prob."""
  columns = np.arange(rollout.tokens.shape[1]) < rollout.length[:, None]
  scored = log_probs(model, params, rollout.tokens, segments=columns.astype(np.int32))
  assert comparison.sampled_error(rollout, np.asarray(scored)) < tolerance


@pytest.mark.parametrize("shared_prefix", [False, True])
@pytest.mark.parametrize("name", of_families({"gemma3", "mistral"}, CACHED))
def test_the_engine_reads_what_a_full_pass_reads(checkpoints, name, shared_prefix):
  model, params, _ = load_pretrained(checkpoints(name).directory)
  rollout = comparison.engine_sampled(model, params, shared_prefix=shared_prefix)
  assert_sampled_as_scored(model, params, rollout)


@pytest.mark.parametrize("name", of_families({"gemma3", "mistral"}, CACHED))
def test_a_group_samples_what_a_full_pass_reads(checkpoints, name):
  model, params, _ = load_pretrained(checkpoints(name).directory)
  assert_sampled_as_scored(model, params, sampled(model, params))


@pytest.mark.parametrize("name", of_families({"olmo2"}, NEW))
def test_adapters_are_trained_and_exported(checkpoints, name, tmp_path):
  """Every adapter has a gradient; transformers reads what the merged network computes."""
  model, params, _ = load_pretrained(checkpoints(name).directory)
  trained, frozen, cfg = comparison.with_adapters(params)

  def loss(trained):
    return jnp.mean(log_probs(model, trainable.merge(trained, frozen, cfg), ids())[..., 5])

  gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(trained))
  assert len(gradients) == 14 * model.config.num_layers
  assert all(float(jnp.abs(x).max()) > 0 for x in gradients)
  merged = trainable.merge(trained, frozen, cfg)
  save_pretrained(tmp_path / "out", model, merged)
  theirs = jax.nn.log_softmax(hf.logits(hf.reload(tmp_path / "out"), ids()))
  assert relative_error(log_probs(model, merged, ids()), theirs) < 1e-4
  assert relative_error(log_probs(model, params, ids()), theirs) > 1e-2


@pytest.mark.parametrize("name", of_families((), ["mistral", "olmo2", "gemma3"]))
def test_int8_is_as_near_as_its_rounding(checkpoints, name):
  """Weights held as int8 decode as rounded ones are scored; an int8 cache changes little."""
  model, params, _ = load_pretrained(checkpoints(name).directory)
  rounded = numerics.rollout_numerics(model, params, RolloutConfig(quantization="int8"))[1]
  stored = numerics.rollout_numerics(model, params, RolloutConfig(quantization="int8_weights"))
  assert_sampled_as_scored(model, rounded, sampled(*stored))
  cached = numerics.rollout_model(model, RolloutConfig(cache_dtype="int8"))
  assert_sampled_as_scored(model, params, sampled(cached, params), 0.1)


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


def test_layers_of_two_kinds_are_not_stacked(checkpoints):
  for name in ("gemma3", "smollm3"):
    with pytest.raises(CheckpointError, match=r"cannot be stacked\. Fix: model\.scan_layers=False"):
      load_pretrained(checkpoints(name).directory, scan_layers=True)
  load_pretrained(checkpoints("mistral").directory, scan_layers=True)


def test_every_family_of_the_package_has_a_checkpoint():
  assert {kind for kind, _ in hf.FAMILIES.values()} == set(families.names())


def test_a_plugin_registers_a_family(tmp_path):
  """OLMo 3 in one file: read, compared with transformers, written and read back."""
  checkpoint = hf.make("olmo3", tmp_path / "in")
  with pytest.raises(CheckpointError, match="model_type = 'olmo3' is not supported"):
    load_pretrained(checkpoint.directory)
  config.load_plugins((str(parity.PLUGIN),))
  model, params, report = load_pretrained(checkpoint.directory)
  expected = jax.nn.log_softmax(hf.logits(checkpoint.network, ids()))
  assert relative_error(log_probs(model, params, ids()), expected) < 1e-4
  assert report.model_type == "olmo3" and model.config.full_layers == (3,)
  assert comparison.export_error(checkpoint, tmp_path / "out") < 1e-6
