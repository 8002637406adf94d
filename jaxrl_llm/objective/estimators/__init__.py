"""Importance-ratio estimators, by name. Adding one: see the README's "Add an estimator"."""

from jaxrl_llm.objective.estimators import (
    batch,
    cumulative,
    reinforce,
    sequence,
    token,
    trust_region,
)
from jaxrl_llm.objective.estimators.registry import get_estimator, names, register, resolve, spec

__all__ = [
    "batch", "cumulative", "get_estimator", "names", "register", "reinforce", "resolve", "sequence",
    "spec", "token", "trust_region"
]
