"""Families of checkpoints against transformers: a table of errors, and what a window saves."""
