"""Number tokens: codecs of numbers as separate tokens."""
