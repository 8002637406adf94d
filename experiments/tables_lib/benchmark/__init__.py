"""Samples and measures of a checkpoint on held-out problems."""
