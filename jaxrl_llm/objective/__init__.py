"""The science: pure functions of [B, L] arrays."""
