"""How a run goes on: the loop, its iterations, checkpoints, evaluation, and the run's folder."""
