"""The report of a replay: one saved batch under every estimator."""
