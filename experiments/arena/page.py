"""Writes the page of the arena from its results."""


def write() -> None:
  """Writes README.md and its figures."""
