"""Soft tokens: mixtures of embeddings as thoughts."""
