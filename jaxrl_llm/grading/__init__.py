"""Verdicts on answers: what a completion concludes, and whether it equals the reference."""
