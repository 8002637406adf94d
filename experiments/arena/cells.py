"""The runs of the map: methods, settings, learning rates, staleness and seeds, table by table.

The order is that of worth: an interrupted map has the cells that most claims ask for.
"""

import dataclasses
from pathlib import Path

from experiments.tables_lib.arena.setting import Setting

STEPS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
# Beyond the grid, where the best step of many methods was its end: windows and old completions ask
# for large steps on `warm`, no window for small ones on `ending`.
BEYOND = {"warm": (1.28, 2.56), "ending": (0.005, 0.01)}
BEYOND_LONG = {"warm": (0.02, 0.64), "ending": (0.01, 0.02)}
SGD_STEPS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
GRU_STEPS = (0.005, 0.01, 0.02, 0.04)
AGES = (4, 16, 64)
SEEDS = 16

NONE = "none@reinforce?advantage=grpo"
KEPT = "cispo_window@cispo?clip_low=.2&clip_high=.2"
WIDE_GSPO = "gspo_wide@gspo?clip_low=.03&clip_high=.04"
WIDE_CTPO = "ctpo_wide@ctpo?log_low=.2&log_high=.4&log_dual=.4"
CORE = (NONE, "cispo", "minpro", "grpo", "gspo", "ctpo", "seq_is", KEPT, "dppo_tv")
FURTHER = ("dapo_window@ppo?clip_high=.28", "topr", WIDE_CTPO, "ctpo_geomean", WIDE_GSPO, "vespo",
           "prefix_power", "sapo", "gmpo", "ce_gppo", "aspo", "kpop", "mis_po")
SORTING = ("m2po", "bapo")  # sort the tokens of a batch, so on short rows only
IDEAS = ("drift_free", "bound_by_age", "kept_window", "even_steps", "short_memory")
HERE = Path("experiments/arena/ideas")
# As in TPO's paper: the rewards over the population's standard deviation, rows summed.
GROUPED = "aggregation=sequence_sum&advantage.ddof=0&advantage.epsilon=0.0"
FORMS = HERE.parent / "group_forms.py"
SNAPSHOT = f"{FORMS}:snapshot_grpo?{GROUPED}"
TERMINAL = ("tpo", f"grpo_sequence@{SNAPSHOT}", f"grpo_no_pull@{SNAPSHOT}&pull=0.0",
            f"grpo_drop_equal@{SNAPSHOT}&drop_equal=True",
            f"group_pg@reinforce?advantage=grpo&{GROUPED}",
            f"tpo_without_anchor@{FORMS}:tpo_without_anchor?{GROUPED}", "grpo", "tpo_mean",
            f"tpo_drop_equal@{FORMS}:tpo_drop_equal?{GROUPED}")

# Steps beyond the grid, where its end was the best step, by the place of the job: of TPO with 32
# tokens, of GRPO without a pull with 32, and of scalar weights and token ratios with 8.
TERMINAL_BEYOND = {1: (0.64, 1.28), 5: (0.005, 0.01), 8: (0.005, 0.01), 12: (0.005, 0.01)}


@dataclasses.dataclass(frozen=True)
class Job:
  """One program: a method in a setting, over learning rates, staleness and noise.

  Attributes:
    table: name of the file of results.
    fresh: name of the file of seeds that choose nothing. They run with the others, because a
      program takes longer to compile than to run; "": such seeds have programs of their own.
  """

  table: str
  method: str
  setting: Setting
  steps: tuple[float, ...] = STEPS
  ages: tuple[int, ...] = AGES
  noises: tuple[float, ...] = (0.0,)
  seeds: tuple[int, ...] = tuple(range(SEEDS))
  fresh: str = ""

  @property
  def runs(self) -> int:
    return len(self.steps) * len(self.ages) * len(self.noises) * len(self.seeds)

  @property
  def tokens(self) -> int:
    """Returns the sampled tokens at most, which tell how long it takes."""
    return self.runs * self.setting.iterations * self.setting.rows * self.setting.length


def idea(name: str) -> str:
  """Returns the method of an idea: `name@experiments/arena/ideas/name.py:name`, with its preset."""
  extra = {"even_steps": "cispo?transform=even_steps"}.get(name, name)
  return f"{name}@{HERE / name}.py:{extra}"


def grid(task: str, length: int, methods) -> list[Job]:
  """Returns the jobs of one part of the map."""
  ages = (16,) if length > 256 else AGES
  steps = STEPS[1:5] if length > 256 else STEPS
  return [Job(f"{task}_{length}", method, Setting(task, length=length), steps, ages)
          for method in methods]


def beyond(methods, lengths) -> list[Job]:
  """Returns the jobs of the steps beyond the grid."""
  return [dataclasses.replace(job, steps=(BEYOND_LONG if length > 256 else BEYOND)[task])
          for length in lengths for task in ("warm", "ending")
          for job in grid(task, length, methods)]


def jobs() -> list[Job]:
  """Returns all jobs of the committed map."""
  return [
      *grid("warm", 256, CORE), *grid("ending", 256, CORE),
      *ideas(), *baselines(), *aggregations(), *noise(), *anchors(), *credit(),
      *grid("warm", 1024, CORE[:7]), *optimizers(), *mixtures(), *recurrent(),
      *grid("warm", 64, (*CORE, *SORTING)), *grid("ending", 64, (*CORE, *SORTING)),
      *grid("warm", 256, FURTHER), *grid("ending", 1024, CORE[:7]), *grid("ending", 256, FURTHER),
      *grid("warm", 64, FURTHER), *grid("ending", 64, FURTHER), *grid("warm", 1024, CORE[7:]),
      *terminal(), *replays(), *beyond(CORE, (256, 64)), *beyond(CORE[:7], (1024,)),
      *beyond(FURTHER, (256,)),
  ]


def ideas() -> list[Job]:
  return [Job("ideas", idea(name), Setting(task)) for task in ("warm", "ending") for name in IDEAS]


def baselines() -> list[Job]:
  """64 rows in groups of 4 or of 32, on-policy, without a ratio's help: one optimizer batch."""
  out = []
  for task in ("warm", "ending"):
    for size, advantage in ((4, "otb"), (4, "rloo"), (32, "rloo"), (4, "opo")):
      setting = Setting(task, length=64, groups=64 // size, group_size=size, batches=1)
      out.append(Job("baselines", f"{advantage}_{size}@reinforce?advantage={advantage}", setting,
                       STEPS[:5], (0,), seeds=tuple(range(32))))
  return out


def aggregations() -> list[Job]:
  """Returns the jobs of the tasks whose lengths differ with correctness."""
  return [Job("aggregation", f"{name}@cispo?aggregation={name}", Setting("ending"), STEPS[:5],
              (0, 16)) for name in ("token", "sequence", "fixed", "balanced")]


def noise() -> list[Job]:
  """The sampler's numerics: on-policy, noise of 1 on its logits; with and without corrections."""
  corrected = (
      "ppo_recomputed@ppo?anchor=recomputed",
      "ppo_token_weight@ppo?anchor=recomputed&correction.level=token&correction.cap=2.0",
      "ppo_sequence_weight@ppo?anchor=recomputed&correction.level=sequence&correction.cap=5.0",
      "decoupled_ppo", "icepop")
  return [Job("noise", method, Setting("warm", length=64), STEPS[:5], (0,), (0.0, 1.0))
          for method in (NONE, "cispo", "minpro", "grpo", WIDE_GSPO, "seq_is", "ctpo", *corrected)]


def anchors() -> list[Job]:
  """The policy at the start of the iteration as denominator, instead of the one that sampled."""
  return [Job("anchors", method, Setting("warm"), STEPS[:5], (16,))
          for method in ("grpo", "grpo_recomputed@grpo?anchor=recomputed",
                         "gspo_recomputed@gspo?anchor=recomputed",
                         "ctpo_recomputed@ctpo?anchor=recomputed", "decoupled_ppo")]


def credit() -> list[Job]:
  """Credit within a row, on-policy."""
  advantages = ("grpo", "tempo", "otb", "gae&advantage.lam=.95", "gae&advantage.lam=1.0")
  return [Job("credit", f"{text.partition('&')[0]}{text.partition('lam=')[2]}@"
              f"cispo?advantage={text}", Setting("warm", length=64), STEPS[:5], (0,))
          for text in advantages]


def terminal() -> list[Job]:
  """TPO's own condition: a reward at the end of a short row, and four epochs over each batch."""
  settings = [Setting("sparse", length=length, batches=1, epochs=4, ring=1) for length in (8, 32)]
  out = [Job("terminal", method, setting, STEPS[:5], (0,), fresh="terminal_fresh")
         for method in TERMINAL for setting in settings]
  for index, steps in TERMINAL_BEYOND.items():
    out.append(dataclasses.replace(out[index], steps=steps))
  return out


def optimizers() -> list[Job]:
  """SGD beside Adam, whose cells are those of the map."""
  return [Job("sgd", method, Setting("warm", length=64, optimizer="sgd"), SGD_STEPS, (16,))
          for method in CORE[:7]]


def mixtures() -> list[Job]:
  """Ages that vary within a batch, and that fall along a row."""
  return [Job("mixtures", method, Setting("warm", mixture=mixture), STEPS[1:5], (16, 64))
          for mixture in ("batch", "row") for method in (NONE, "cispo", "minpro", "grpo", "ctpo")]


def replays() -> list[Job]:
  """Groups of all ages up to the largest in one batch, and CISPO on the new groups alone."""
  setting = Setting("warm", length=32, mixture="replay", ring=17)
  return [Job("replay", method, setting, STEPS[1:5], (0, 4, 16) if method == "cispo" else (4, 16),
              fresh="replay_fresh") for method in ("cispo", "grpo", NONE, "minpro")]


def recurrent() -> list[Job]:
  """A policy that remembers."""
  setting = Setting("warm", "gru", length=32, iterations=160, evaluations=16)
  return [Job("gru", method, setting, GRU_STEPS, (16,))
          for method in (NONE, "cispo", "minpro", "grpo", "gspo", "ctpo")]
