"""Memory and time of an iteration on an accelerator, from its compiled programs only."""
