"""Published recipes by name: `--config=configs/quickstart.py:gspo`.

A preset chooses methods and their hyperparameters only. The config keeps its sizes: rollout batch,
learning rate, lengths, and the weight of the reference KL unless the recipe depends on it.
`objective/README.md` says for each recipe where the paper and its public code differ.
"""

import math

from ml_collections import config_dict

from jaxrl_llm.config import ConfigError
from jaxrl_llm.fields import did_you_mean


def recipe(estimator: str, advantage: str, aggregation: str, **further) -> dict:
  """Returns flat config keys; a double underscore in `further` becomes a dot."""
  return {"estimator.name": estimator, "advantage.name": advantage, "aggregation.name": aggregation,
          **{key.replace("__", "."): value for key, value in further.items()}}


_DPPO = {"estimator__ratio_cap": "none"}
_SEQUENCE_TIS = {"correction__level": "sequence", "correction__cap": 5.0}

PRESETS = {
    # No ratio: every further optimizer batch of a rollout is off-policy, which a run warns of.
    "reinforce":
        recipe("reinforce", "none", "token"),
    "rloo":
        recipe("reinforce", "rloo", "token"),
    "reinforce_pp":
        recipe("reinforce", "reinforce_pp", "token"),
    "opo":
        recipe("reinforce", "opo", "token"),
    # Clipped token ratios.
    "grpo":
        recipe("ppo", "grpo", "sequence"),
    "dr_grpo":
        recipe("ppo", "dr_grpo", "fixed"),
    # The soft overlong penalty (shaping.overlong_buffer) must be shorter than a completion, so the
    # config sets it. Published: 4,096 of 20,480 tokens, a fifth.
    "dapo":
        recipe("ppo", "grpo", "token", estimator__clip_low=0.2, estimator__clip_high=0.28,
                dynamic_sampling__enabled=True),
    "cispo":
        recipe("cispo", "grpo", "token"),
    "sapo":
        recipe("sapo", "grpo", "sequence"),
    "dro":
        recipe("dro", "grpo", "token"),
    "kimi":
        recipe("dro", "dr_grpo", "sequence_sum", estimator__span="sequence"),
    "m2po":
        recipe("m2po", "grpo", "token"),
    "m2po_cap":
        recipe("m2po", "grpo", "token", estimator__m2_rule="cap"),
    # Ratios of a prefix.
    "ctpo":
        recipe("ctpo", "grpo", "sequence", **_SEQUENCE_TIS),
    "ctpo_geomean":
        recipe("ctpo_geomean", "grpo", "sequence", **_SEQUENCE_TIS),
    # Its bounds are unpublished; these are `cispo`'s: above only.
    "minpro":
        recipe("minpro", "grpo", "token", estimator__clip_high=4.0),
    "prefix_power":
        recipe("prefix_power", "grpo", "sequence", **_SEQUENCE_TIS),
    # Ratios of a sequence.
    "gspo":
        recipe("gspo", "grpo", "sequence"),
    "gspo_segment":
        recipe("gspo", "grpo", "token", estimator__span="segment", estimator__clip_low=0.2,
                estimator__clip_high=0.2),
    "luspo":
        recipe("gspo", "grpo", "sequence_sum", estimator__clip_low=2e-3,
                estimator__clip_high=2.5e-3),
    "gmpo":
        recipe("gmpo", "grpo", "sequence"),
    "seq_is":
        recipe("seq_is", "grpo", "sequence"),
    # The sign of the reward chooses the side, so a wrong row must be negative, not 0.
    "topr":
        recipe("topr", "none", "sequence_sum", shaping__name="signed"),
    "vespo":
        recipe("vespo", "grpo", "token"),
    # Masks by how far the probability moved.
    # The authors' run: no cap, no standard deviation.
    "dppo_tv":
        recipe("dppo_tv", "dr_grpo", "fixed", **_DPPO, estimator__delta_low=0.15,
                estimator__delta_high=0.15),
    "dppo_tv_recompute":
        recipe("dppo_tv", "dr_grpo", "fixed", **_DPPO, estimator__delta_low=0.15,
                estimator__delta_high=0.15, estimator__mask_anchor="recomputed"),
    "dppo_kl":
        recipe("dppo_kl", "dr_grpo", "fixed", **_DPPO, estimator__delta_low=0.05,
                estimator__delta_high=0.05),
    "cppo":
        recipe("cppo", "grpo", "token"),
    "cppo_adaptive":
        recipe("cppo", "grpo", "token", estimator__d=0.2, estimator__adaptive=True),
    "ipo":
        recipe("ipo", "grpo", "token"),
    "kpop":
        recipe("kpop", "grpo", "token"),
    "drpo":
        recipe("drpo", "grpo", "fixed"),
    "spo":
        recipe("drpo", "grpo", "token", estimator__weighted=False),
    # Another slope beyond the window, or none.
    "ce_gppo":
        recipe("ce_gppo", "grpo", "token"),
    "gppo":
        recipe("ce_gppo", "grpo", "token", estimator__beta_low=1.0),
    "aspo":
        recipe("aspo", "grpo", "token"),
    "rec":
        recipe("rec", "dr_grpo", "token", estimator__clip="one_side"),
    "rec_ring":
        recipe("rec", "dr_grpo", "token", estimator__clip="ring"),
    "delight":
        recipe("delight", "grpo", "token"),
    "fipo":
        recipe("fipo", "grpo", "token", dynamic_sampling__enabled=True),
    # Bounds and tokens chosen for each batch.
    "bapo":
        recipe("bapo", "grpo", "token"),
    "clip_cov":
        recipe("clip_cov", "grpo", "token"),
    "kl_cov":
        recipe("kl_cov", "grpo", "token"),
    # Filters of rows.
    "geo_mask":
        recipe("geo_mask", "grpo", "token"),
    "seq_mis":
        recipe("seq_mis", "grpo", "token"),
    "mis_po":
        recipe("mis_po", "grpo", "token"),
    # A row against its group. Of the first two the coefficient falls with the group's size.
    "tpo":
        recipe("tpo", "grpo", "sequence_sum", advantage__ddof=0, advantage__epsilon=0.0),
    "tpo_mean":
        recipe("tpo", "grpo", "sequence", advantage__ddof=0, advantage__epsilon=0.0,
                estimator__normalize="mean"),
    "gvpo":
        recipe("gvpo", "grpo", "sequence_sum"),
    "oapl":
        recipe("oapl", "dr_grpo", "sequence_sum"),
    "qrpo":
        recipe("qrpo", "dr_grpo", "sequence_sum"),
    "real":
        recipe("real", "grpo", "sequence"),
    # Sampler / trainer mismatch.
    "kpop_correction":
        recipe("ppo", "grpo", "token", updates__anchor="recomputed", correction__level="token",
                correction__cap="none", correction__reject=(("token_kpop", None, 2.0),)),
    # With `low`, a weight above the cap becomes 0 instead of the cap: AReaL's mask.
    "decoupled_ppo":
        recipe("ppo", "grpo", "token", updates__anchor="recomputed", correction__level="token",
                correction__low=0.0, correction__cap=5.0),
    "icepop":
        recipe("ppo", "grpo", "sequence", updates__anchor="recomputed", correction__level="token",
                correction__low=0.5, correction__cap=5.0),
    "trm":
        recipe("ppo", "grpo", "token", updates__anchor="recomputed",
                correction__reject=(("seq_max_k3", None, 0.1),)),
    "trm_avg":
        recipe("ppo", "grpo", "token", updates__anchor="recomputed",
                correction__reject=(("seq_mean_k3", None, 0.002),)),
    # The report gives neither the threshold nor the KL weight; both are own choices.
    "deepseek":
        recipe("ppo", "grpo", "sequence", correction__sequence_delta=0.05, kl__name="k3",
                kl__coef=1e-3, kl__place="loss", kl__importance=True),
    "dvp":
        recipe("ppo", "grpo", "sequence", vocabulary__min_p=math.exp(-13)),
    # Credit and weighting.
    "ppo_critic":
        recipe("ppo", "gae", "token"),
    "bpco":  # one completion per prompt; rewards of 0 to 1
        recipe("dppo_tv", "gae", "token", advantage__whiten=False, advantage__length_alpha=0.4,
               advantage__target_lam=1.0, critic__bounded=True, critic__first=15),
    # Both published fully on-policy: with `updates.optimizer_batches=1` the clip never acts.
    "otb":
        recipe("ppo", "otb", "token"),
    "tir_otb":
        recipe("ppo", "tir_otb", "token"),
    "tempo":
        recipe("ppo", "tempo", "token", estimator__clip_low=0.2, estimator__clip_high=0.28),
    "maxrl":
        recipe("ppo", "maxrl", "token"),
    "pass_k":
        recipe("ppo", "pass_k", "token"),
    "pass_k_best":
        recipe("ppo", "pass_k_best", "token"),
    "opmd":
        recipe("reinforce", "opmd", "token"),
    "asymre":
        recipe("reinforce", "asymre", "token"),
    # Of the script for mathematics.
    "vcpo":
        recipe("ppo", "opob", "sequence", estimator__clip_low="none", estimator__clip_high="none",
                advantage__normalize=True, correction__level="sequence", correction__cap=8.0,
                transform__name="ess"),
    "balanced":
        recipe("ppo", "grpo", "balanced"),
    "grpo_lambda":
        recipe("ppo", "grpo", "sequence", shaping__name="grpo_lambda"),
}


def apply(config: config_dict.ConfigDict, name: str) -> config_dict.ConfigDict:
  """Returns `config` after setting the keys of a preset.

  Raises:
    ConfigError: an unknown name; the message lists all presets.
  """
  if name not in PRESETS:
    raise ConfigError(
        f"preset {name!r}: known are {', '.join(PRESETS)}.{did_you_mean(name, PRESETS)}")
  config.update_from_flattened_dict(PRESETS[name])
  return config
