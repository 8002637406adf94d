"""Rollouts from an HTTP server, such as vLLM or SGLang; see README.md.

  completions.py    the request for a row, and what its answer must hold
  asking.py         many concurrent requests
  client.py         HTTP, with retries
  control.py        how vLLM and SGLang load weights
  weights.py        the folder that is handed over
  sampler.py        all of it, as a run's sampler
"""

from jaxrl_llm.late import late_names

__all__ = ["ServerError"]
# Imported for runs with a server.
__getattr__ = late_names(__name__, {name: f"{__name__}.{module}" for name, module in {
    "APIS": "control", "check": "control", "Limits": "completions", "ServerSampler": "sampler",
}.items()})


class ServerError(RuntimeError):
  """The rollout server cannot be used. The message names address and fix."""
