"""A run's files and their readers: metrics, rollouts, tables, figures, HTML report."""
