"""Rollouts from an HTTP server, such as vLLM or SGLang; see README.md.

  completions.py    the request for a row, and what its answer must hold
  asking.py         many concurrent requests
  client.py         HTTP, with retries
  control.py        how vLLM and SGLang load weights
  weights.py        the folder that is handed over
  sampler.py        all of it, as a run's sampler
"""

from jaxrl_llm.rollouts.server.client import ServerError
from jaxrl_llm.rollouts.server.completions import Limits
from jaxrl_llm.rollouts.server.control import APIS, check
from jaxrl_llm.rollouts.server.sampler import ServerSampler

__all__ = ["APIS", "Limits", "ServerError", "ServerSampler", "check"]
