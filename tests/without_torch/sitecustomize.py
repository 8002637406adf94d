"""Makes transformers find no torch in the commands that tests start: it is there for comparisons
only, and its import takes two seconds of each start.
"""

import importlib.util

_find_spec = importlib.util.find_spec


def _without_torch(name, *arguments):
  return None if name == "torch" else _find_spec(name, *arguments)


importlib.util.find_spec = _without_torch
