"""What an iteration needs of an accelerator, from its compiled programs alone."""
