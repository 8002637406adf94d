"""Programs of a policy, run apart from the host."""
