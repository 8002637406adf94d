"""cDPO: critical tokens of wrong completions, and preferences by token."""
