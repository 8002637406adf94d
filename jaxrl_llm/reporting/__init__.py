"""What a run leaves on disk and how it is read: metrics, rollouts, tables, figures, HTML report."""
