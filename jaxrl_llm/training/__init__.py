"""One update: scores, optimizer batches, the train step."""
