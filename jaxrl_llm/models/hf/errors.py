"""What reading and writing checkpoints raises."""


class CheckpointError(ValueError):
  """A checkpoint cannot be read or written; the message names the file or tensor, and the fix."""
