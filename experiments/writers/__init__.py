"""Metric writers beside those of the package, as plugins."""
