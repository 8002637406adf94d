"""A run with a token budget is the run without one, up to rounding."""

import jax
import numpy as np
import pytest
from smallest import start_of
from test_iteration import built

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, base_config, from_dict
from jaxrl_llm.models import row_attention
from jaxrl_llm.runs.iteration import iterate
from jaxrl_llm.runs.outputs import merged_metrics
from jaxrl_llm.runs.run_state import first_state
from jaxrl_llm.wiring import setup
from jaxrl_llm.wiring.loop import make_loop


def run(**overrides):
  """(parameters at the end, metrics of each iteration, names of rows) with PIPO and an old sampler.
  """
  parts = built(**{"kl.coef": 0.1, "entropy.coef": 0.01} | overrides)
  start = start_of(parts)
  state, records = first_state(parts.learner, start), []
  for iteration in range(1, 4):
    state, metrics, values, rows = iterate(make_loop(*parts), state, start.params, iteration)
    device = parallel.gather_host((merged_metrics(metrics.steps), metrics.batch))
    host = {name: value for name, value in values.items() if not name.startswith("time/")}
    records.append((device, host, [row["completion"] for row in rows]))
  return jax.device_get(state.state.params), records


@pytest.mark.slow
def test_a_budget_changes_memory_and_speed_only():
  params, records = run(**{"updates.token_budget": 24, "updates.shared_prompts": True})
  expected, others = run()
  assert any("pipo/xi" in host for _, host, _ in records)
  for (device, host, text), (other_device, other_host, other_text) in zip(records, others,
                                                                          strict=True):
    assert text == other_text and host.keys() == other_host.keys()
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4), device,
                 other_device)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-4), params, expected)


@pytest.mark.parametrize("values, named", [
    ({"token_budget": 7}, ["updates.token_budget = 7", "needs 8", "Fix: 0", "8 or more"]),
    ({"token_budget": 64, "micro_batches": 2}, ["updates.micro_batches = 2",
                                                "updates.token_budget = 64"]),
])
def test_budgets_that_do_not_fit_are_refused(values, named):
  config = base_config()
  config.rollout.update(max_prompt_tokens=4, max_new_tokens=4)
  config.updates.update(values)
  with pytest.raises(ConfigError) as error:
    setup.resolve(from_dict(config))
  assert all(text in str(error.value) for text in named), error.value


@pytest.mark.parametrize("kind, values, form", [
    ("cudnn", {}, "not packed rows."),
    ("splash", {"updates.shared_prompts": True}, "not packed rows that share a prompt."),
])
def test_attention_that_cannot_serve_bins_is_refused(kind, values, form, monkeypatch):
  kernel = row_attention.KERNELS[kind]._replace(platform="cpu", dtypes=("float32", "bfloat16"))
  monkeypatch.setitem(row_attention.KERNELS, kind, kernel)
  with pytest.raises(ConfigError, match=f"model.attention = '{kind}': .* {form} Fix: .*=auto"):
    built(**{"updates.token_budget": 24, "model.attention": kind} | values)
