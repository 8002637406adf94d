"""Programs of a policy, run isolated from the host."""
