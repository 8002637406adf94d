"""Packaging of jaxrl_llm."""

from setuptools import find_namespace_packages, find_packages, setup

# What papers, tables and plans import from; data, pages and commands beside it stay in the clone.
CLIENTS = ("commands", "families", "papers", "tables_lib", "planning", "report", "smollm2",
           "tasks", "writers")

setup(
    name="jaxrl_llm",
    version="0.3.0",
    description="Reinforcement learning of language models in JAX: off-policy correction and "
    "credit assignment, side by side",
    license="Apache-2.0",
    packages=[
        *find_packages(include=["jaxrl_llm", "jaxrl_llm.*"]),
        *find_namespace_packages(
            include=[f"experiments.{name}{below}" for name in CLIENTS for below in ("", ".*")],
            exclude=["*.results"]),
    ],
    package_data={"experiments.report": ["templates/*"]},
    python_requires=">=3.11",
    install_requires=[
        "absl-py>=2.1,<3",
        "chex>=0.1.90,<0.2",
        "filelock>=3.13,<5",
        "flax>=0.12,<0.13",
        "huggingface-hub>=1.0,<3",
        "jax>=0.10,<0.12",
        "jaxtyping>=0.3,<0.4",
        "jinja2>=3.1,<4",
        "matplotlib>=3.9,<4",
        "ml-collections>=1.0,<2",
        "numpy>=2.0,<3",
        "optax>=0.2.6,<0.3",
        "orbax-checkpoint>=0.11.30,<0.13",
        "pyyaml>=6,<7",
        "requests>=2.31,<3",
        "safetensors>=0.5,<1",
        "scipy>=1.13,<2",
        "tensorboard>=2.18,<3",
        "tokenizers>=0.21,<0.24",
        "tqdm>=4.66,<5",
        "transformers>=5.0,<6",
    ],
    extras_require={
        "math": ["math-verify>=0.8,<0.10"],
        "gguf": ["gguf>=0.17,<1"],
        "test": [
            "accelerate>=1.0,<2", "beartype>=0.20,<0.24", "datasets>=4.0,<6", "gguf>=0.17,<1",
            "hypothesis>=6.100,<7",
            "ipykernel>=6.29,<8", "ipython>=8.20,<10", "math-verify>=0.8,<0.10", "mypy==2.4.1",
            "nbclient>=0.10,<0.12", "nbformat>=5.10,<6", "peft>=0.15,<1", "pyarrow>=18,<27",
            "pytest>=8,<10", "pytest-xdist>=3.7,<4", "qwix>=0.1.8,<0.2",
            "reasoning-gym>=0.1.20,<0.2", "torch==2.13.0", "traitlets>=5.9,<6"
        ],
        # Beside what Colab has, whose JAX colab/install.py keeps.
        "colab": ["ipython>=7.34,<10", "qwix>=0.1.8,<0.2"],
        "data": ["datasets>=4.0,<6", "pyarrow>=18,<27"],
        "lm-eval": ["lm-eval>=0.4.9,<0.5"],
        "gym": ["reasoning-gym>=0.1.20,<0.2"],
        # experiments/papers/portfolio; cvxpy states in the tests what Clarabel solves.
        "portfolio": ["clarabel>=0.9,<0.12", "cvxpy-base>=1.6,<2", "vaderSentiment>=3.3,<4"],
        "wandb": ["wandb>=0.19,<1"],
        "trackio": ["trackio>=0.5,<1"],
        "quantization": ["qwix>=0.1.8,<0.2"],
        "cuda12": ["jax[cuda12]"],
        "cuda13": ["jax[cuda13]"],
        "tpu": ["jax[tpu]"],
        # Compilers of the planner, which need no accelerator: jax[tpu] is libtpu alone.
        "plan-tpu": ["jax[tpu]"],
        "plan-gpu": ["jax[cuda12]"],
    },
)
