"""One saved batch under every estimator."""
