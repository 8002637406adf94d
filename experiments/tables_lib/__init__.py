"""What makes tables and pages of runs: sweeps, statistics, figures, published values, notebooks."""
