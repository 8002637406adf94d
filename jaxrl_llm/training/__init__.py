"""How one update is made: scores, optimizer batches, the train step."""
