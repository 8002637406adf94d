"""Tasks beside those of the package, as plugins: `--config.plugins=experiments.tasks.<name>`."""
