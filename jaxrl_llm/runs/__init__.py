"""Training runs: the loop, its iterations, checkpoints, evaluation, and the run's folder."""
