"""The plugins of the papers, which every test in this folder may name without loading them."""

from experiments.papers import arca, occ, pipo  # noqa: F401
