"""Budgets: pruning by what a parameter group contributes."""
