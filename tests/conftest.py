"""Eight CPU devices, and shapes and dtypes of the maths checked against its annotations."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

from jaxtyping import install_import_hook

_HOOK = install_import_hook(["jaxrl_llm.ops", "jaxrl_llm.objective"], "beartype.beartype")
