"""Counting: what a network reads out along a count."""
