"""Does the order of the ratios hold for other sizes of the policy and other lengths of rows?

  python experiments/scale/sweep.py --list
  python experiments/scale/sweep.py --jobs=2
  python experiments/scale/sweep.py --render

The deciding rows of experiments/staleness x sizes of the policy x lengths. Writes the table of
README.md beside this file.
"""

from pathlib import Path

from jaxrl_llm.analysis import accuracy, sweeps
from jaxrl_llm.analysis.sweeps import Cell, Sweep
from jaxrl_llm.reporting import tables

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
SIZES = {
    "0.3 M": {"width": 80, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "head_dim": 20,
              "mlp_width": 240},
    "0.8 M": {},  # as configs/offpolicy.py has it
    "4.7 M": {"width": 256, "num_layers": 6, "num_heads": 8, "num_kv_heads": 4, "head_dim": 32,
              "mlp_width": 768},
}
TERMS = (4, 6)  # 15 and 23 tokens for a worked answer
# All ratios are to the policy that sampled, as in experiments/staleness.
METHODS = {
    "none": ("grpo", "--config.estimator.name=reinforce"),
    "GSPO": ("gspo",),
    "MinPRO": ("minpro",),
    "CTPO": ("ctpo", "--config.correction.level=none", "--config.correction.cap=2.0"),
}
TRIPLES = tuple((size, terms, name) for size in SIZES for terms in TERMS for name in METHODS)
HEADER = ("parameters", "terms", "method", *accuracy.HEADER)


def _key(size: str, terms: int, name: str, seed: int) -> str:
  return f"{size}_{terms}_terms_{name}_seed{seed}".lower().replace(" ", "").replace(".", "p")


def cells() -> list[Cell]:
  """Seed by seed, so that an unfinished sweep has whole seeds."""
  return [_cell(*triple, seed) for seed in SEEDS for triple in TRIPLES]


def _cell(size: str, terms: int, name: str, seed: int) -> Cell:
  preset, *flags = METHODS[name]
  shape = [f"--config.model.{key}={value}" for key, value in SIZES[size].items()]
  return Cell(_key(size, terms, name, seed), (
      f"--config=configs/offpolicy.py:{preset},{terms}", "--config.updates.anchor=behavior", *flags,
      *shape, f"--config.seed={seed}"))


def render(results: dict[str, dict], folder: Path) -> None:
  """Writes the table into README.md."""
  rows = []
  for triple in TRIPLES:
    keys = [_key(*triple, seed) for seed in SEEDS]
    if results.keys() >= set(keys):
      rows.append((*triple, *accuracy.row([results[key]["measured"] for key in keys])))
  tables.replace_part(folder / "README.md", "sweep.py",
                      tables.markdown_table(HEADER, rows) + sweeps.made_at(results))


SWEEP = Sweep(HERE, cells(), accuracy.measure, render)

if __name__ == "__main__":
  sweeps.main(SWEEP, __doc__)
