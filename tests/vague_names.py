"""Counts functions that bind a name which says nothing about its value.

`python tests/vague_names.py [FILE or FOLDER ...]` prints the share, and each such function; by
default of jaxrl_llm/. A function binds its own name, its parameters, and what is stored in its body
(also by a comprehension, a lambda or `except`). Functions within it are counted for themselves.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "jaxrl_llm"

# Participles and relative words in place of a noun, and nouns that fit every value.
VAGUE = frozenset("""
    asked apart at beside both counted each ended every found given gone got heard held its kept
    laid made named of one others own put said seen shown some taken theirs these those told wanted
    which whole
    element info item items obj result results data stuff thing things
""".split())

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def bound_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
  """Returns the names that a function binds, without those of functions within it."""
  a = function.args
  arguments = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
  names = {function.name} | {argument.arg for argument in arguments if argument is not None}
  nodes = [*function.body]
  while nodes:
    node = nodes.pop()
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
      continue
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      names.add(node.id)
    elif isinstance(node, ast.arg):
      names.add(node.arg)
    elif isinstance(node, ast.ExceptHandler) and node.name:
      names.add(node.name)
    nodes += ast.iter_child_nodes(node)
  return names


def functions(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
  """Yields every function of a module."""
  yield from (node for node in ast.walk(ast.parse(source)) if isinstance(node, FUNCTIONS))


def vague_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
  """Returns the vague names that a function binds, sorted; `_found` is as vague as `found`."""
  return sorted(name for name in bound_names(function) if name.strip("_") in VAGUE)


def count(sources: dict[str, str]) -> tuple[int, list[str]]:
  """Returns (number of functions, a line for each that binds a vague name) of sources by path."""
  total, lines = 0, []
  for path, source in sources.items():
    for function in functions(source):
      total += 1
      if names := vague_names(function):
        lines.append(f"{path}:{function.lineno} {function.name}: {', '.join(names)}")
  return total, lines


def read_sources(paths: list[Path]) -> dict[str, str]:
  """Returns the text of each Python file, and of those in each folder, by path."""
  files = [file for path in paths
           for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
  return {str(file): file.read_text() for file in files}


def main() -> None:
  total, lines = count(read_sources([Path(path) for path in sys.argv[1:]] or [PACKAGE]))
  print(*lines, sep="\n")
  print(f"{len(lines)} of {total} functions bind a vague name ({100 * len(lines) / total:.1f} %)")


if __name__ == "__main__":
  main()
