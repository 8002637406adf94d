"""Number tokens: codecs of numbers as tokens of their own."""
