"""A run's folder: checkpoints, lock, signals, disk space, shared caches."""
