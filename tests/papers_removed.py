"""What is left of a copy of the package without some of its papers; started by test_papers.py.

  python papers_removed.py FOLDER

FOLDER holds the copy. A child that is forked looks at the whole package, one at it without each
paper, and one at it without any; each prints a line of JSON. What they all import beside the
package is imported once, before the second of them.
"""

import contextlib
import importlib
import io
import json
import os
import pkgutil
import runpy
import sys
import traceback
from pathlib import Path
from unittest import mock

LIBRARIES = ("jax.", "flax.", "optax.", "orbax.", "transformers.", "matplotlib.", "scipy.",
             "tensorboard.", "ml_collections.", "huggingface_hub.", "datasets.", "jinja2.")
OPTIONAL = ("reasoning_gym", "qwix", "wandb", "trackio", "math_verify")  # extras of setup.py


# These are started, not imported: beside them they import their neighbours by bare names.
SCRIPTS = ("__main__", "sandbox_child", "sandbox_server")


def modules(package) -> list[str]:
  """Returns the names of all modules of a package but SCRIPTS."""
  return [info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
          if info.name.rpartition(".")[2] not in SCRIPTS]


def import_all() -> list[str]:
  """Imports every module that is there; returns what failed."""
  failed = []
  import jaxrl_llm

  for name in modules(jaxrl_llm):
    try:
      importlib.import_module(name)
    except ImportError as error:
      if error.name not in OPTIONAL:
        failed.append(f"{name}: {error}")
  return failed


def listing() -> str:
  """Returns what `python -m jaxrl_llm.config --all` prints."""
  text = io.StringIO()
  with contextlib.redirect_stdout(text), mock.patch.object(sys, "argv", ["config", "--all"]):
    runpy.run_module("jaxrl_llm.config", run_name="__main__", alter_sys=True)
  return text.getvalue()


def state() -> dict:
  """Returns the names of every table, of the presets and decorators, and the keys of the listing.
  """
  from jaxrl_llm import paper_table, presets, register, registry
  from jaxrl_llm.config import base_config, from_dict
  from jaxrl_llm.reporting import glossary

  tables = {table.kind: table.names() for table in vars(registry).values()
            if isinstance(table, registry.Table)}
  for name in presets.PRESETS:
    from_dict(presets.apply(base_config(), name))
  decorators = [*register.__all__, *paper_table.names("decorator")]
  for name in decorators:
    assert callable(getattr(register, name))
  return {"names": tables | {"preset": list(presets.PRESETS), "decorator": decorators,
                           "metrics": sorted({entry.name.split("/")[0]
                                              for entry in glossary.all_entries()})},
          "keys": sorted({line.split(" = ")[0] for line in listing().splitlines()
                          if " = " in line and not line.startswith("#")}),
          "loaded": sorted(name for name in sys.modules if name.startswith("experiments.papers."))}


def child(label: str, libraries: Path | None = None) -> None:
  """Prints what is left, in a process of its own; writes which libraries it needed."""
  sys.stdout.flush()
  process = os.fork()
  if process:
    os.waitpid(process, 0)
    return
  try:
    line = {"removed": label, "failed": import_all(), **state()}
    if libraries is not None:
      libraries.write_text("\n".join(name for name in sys.modules if name.startswith(LIBRARIES)))
  except BaseException:
    line = {"removed": label, "failed": [traceback.format_exc()[-1500:]]}
  print(json.dumps(line), flush=True)
  os._exit(0)


def main(folder: Path) -> None:
  sys.path.insert(0, str(folder))
  papers, aside = folder / "jaxrl_llm/papers", folder / "aside"
  names = sorted(path.name for path in papers.iterdir() if (path / "__init__.py").exists())
  aside.mkdir()
  child("nothing", folder / "libraries")
  for name in (folder / "libraries").read_text().split():
    with contextlib.suppress(ImportError):
      importlib.import_module(name)
  for name in names:
    (papers / name).rename(aside / name)
    child(name)
    (aside / name).rename(papers / name)
  for name in names:
    (papers / name).rename(aside / name)
  child("all")


if __name__ == "__main__":
  main(Path(sys.argv[1]))
