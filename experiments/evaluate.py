"""Sample several completions per held-out problem; report avg@k, pass@k and maj@k with intervals.

  python experiments/evaluate.py --workdir=runs/a --out=runs/a/evaluation --samples=8
  python experiments/evaluate.py --pretrained=DIR --config=configs/qwen25_0_5b_gsm8k.py \
    --out=evaluation/gsm8k
  python experiments/evaluate.py --pretrained=DIR --config=configs/qwen25_0_5b_gsm8k.py \
    --out=evaluation/aime \
    --config.task.heldout_problems=0 --config.evaluation.sets.aime.path=data/aime.jsonl \
    --config.evaluation.sets.aime.mapping=aime --config.evaluation.sets.aime.samples=32

A run brings its own task and evaluation sets; with --config, the task, the sets, the row's lengths
and the mesh of that config take their place. A Hugging Face directory needs --config. Each set has
a folder of its name. Started again with the same flags, it resumes where it was interrupted.
"""

import contextlib

from absl import flags
from ml_collections import config_flags

from experiments.commands import command_line, saved
from experiments.tables_lib.benchmark import benchmark, loading
from jaxrl_llm import config as config_lib
from jaxrl_llm.models import CheckpointError
from jaxrl_llm.store.checkpoints import TornCheckpointsError
from jaxrl_llm.wiring import evaluation_sets, setup

_CONFIG = config_flags.DEFINE_config_file("config", None,
                                          "Config file: `path.py` or `path.py:preset`.",
                                          lock_config=False, accept_new_attributes=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run.")
_CHECKPOINT = flags.DEFINE_string("checkpoint", "latest",
                                  "Iteration of the run's checkpoint, `latest` or `best`.")
_PRETRAINED = flags.DEFINE_string("pretrained", None,
                                  "Hugging Face directory, or an adapter of PEFT, in place of "
                                  "--workdir.")
_OUT = flags.DEFINE_string("out", None, "Folder for samples, metrics and table.")
_SAMPLES = flags.DEFINE_integer("samples", 8, "Samples per problem.")
_TEMPERATURE = flags.DEFINE_float("temperature", 0.6, "Sampling temperature; 0: greedy.")
_TOP_P = flags.DEFINE_float("top_p", 1.0, "Sample only the likeliest tokens of this mass; 1: all.")
_TOP_K = flags.DEFINE_integer("top_k", 0, "Sample only this many likeliest tokens; 0: all.")
_MIN_P = flags.DEFINE_float("min_p", 0.0,
                            "Sample no token below this share of the likeliest one's probability.")
_PLUGINS = flags.DEFINE_string("plugins", "",
                               "`run`: import the plugins that the run's config names.")
_BATCH = flags.DEFINE_integer("batch", 64, "Rows sampled at once.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the samples.")


def main():
  settings = benchmark.Settings(_SAMPLES.value, _TEMPERATURE.value, _TOP_P.value, _TOP_K.value,
                                _MIN_P.value, _BATCH.value, _SEED.value)
  cfg = None if _CONFIG.value is None else config_lib.from_dict(_CONFIG.value)
  if (_WORKDIR.value is None) == (_PRETRAINED.value is None):
    raise config_lib.ConfigError(
        "--workdir and --pretrained say whose parameters are evaluated: one of them is allowed. "
        "Fix: --workdir=<a run's folder>, or --pretrained=<a checkpoint>.")
  if _WORKDIR.value is not None:
    iteration = saved.choose(_WORKDIR.value, _CHECKPOINT.value)
    source = {"workdir": _WORKDIR.value, "checkpoint": iteration}
    built, params = loading.load_run(_WORKDIR.value, iteration, cfg,
                                     plugins=_PLUGINS.value)
  elif cfg is None:
    raise config_lib.ConfigError("--pretrained needs a task. Fix: add --config.")
  else:
    source = {"pretrained": _PRETRAINED.value}
    built, params = loading.load_directory(_PRETRAINED.value, cfg)
    setup.log_sampling(_PRETRAINED.value, {"temperature": settings.temperature,
                                           "top_k": settings.top_k, "top_p": settings.top_p,
                                           "min_p": settings.min_p})
  cfg, task, _, sampler = built
  with contextlib.closing(sampler):
    sets = evaluation_sets.make_sets(cfg, task)
    metrics_by_set = benchmark.run(sets, sampler, params, settings, _OUT.value,
                                   loading.described(cfg) | {"source": source})
  for name, metrics in metrics_by_set.items():
    print(f"{name}:\n" if name else "", benchmark.table(metrics), sep="")
  if any(metrics_by_set):
    print(benchmark.joint_table(metrics_by_set))


if __name__ == "__main__":
  command_line.run(main, required=("out",), folders=("workdir", "pretrained", "out"),
                   errors=(CheckpointError, TornCheckpointsError))
