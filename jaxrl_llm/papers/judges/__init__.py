"""Judges: tournaments of comparisons."""
