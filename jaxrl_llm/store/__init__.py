"""A run's folder: checkpoints, lock, signals."""
