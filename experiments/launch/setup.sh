#!/usr/bin/env bash
# Makes a worker of a Cloud TPU slice ready; run again, it takes up the repository's newest commit.
#   REPOSITORY  address of this repository, for git clone, or a file that `tpu.py push` or git bundle made
#   EXTRAS      of the package; default: tpu,data,math, which the recipes in configs/ need
#   PYTHON      version of the interpreter, which the image may lack; default: 3.12
#   INPUTS      folder of a bucket with weights and data, copied to ~/inputs; none: the hub
#   SECRET      of Secret Manager, with a token of Hugging Face; none: only open models
#   BUCKET      to be mounted at /mnt/BUCKET by gcsfuse; none: a run writes to gs:// by itself
set -euo pipefail

if [ -z "${REPOSITORY:-}" ]; then
  echo "error: REPOSITORY is not set. Fix: REPOSITORY=<address of this repository>" >&2
  exit 1
fi
cd ~
if [ -f "$REPOSITORY" ]; then
  [ -d jaxrl_llm/.git ] || git init --quiet jaxrl_llm
  git -C jaxrl_llm fetch --quiet "$(realpath "$REPOSITORY")" HEAD
  git -C jaxrl_llm checkout --quiet --force --detach FETCH_HEAD
elif [ -d jaxrl_llm/.git ]; then
  git -C jaxrl_llm pull --ff-only
else
  git clone "$REPOSITORY" jaxrl_llm
fi
cd jaxrl_llm
python3 -m pip install --user --quiet "uv>=0.5"
python3 -m uv venv --allow-existing --python "${PYTHON:-3.12}" .venv
python3 -m uv pip install --python .venv/bin/python -e ".[${EXTRAS:-tpu,data,math}]"
if [ -n "${INPUTS:-}" ]; then
  mkdir -p ~/inputs
  gcloud storage rsync --recursive "$INPUTS" ~/inputs
fi
if [ -n "${SECRET:-}" ]; then
  mkdir -p ~/.cache/huggingface
  (umask 077 && gcloud secrets versions access latest --secret="$SECRET" > ~/.cache/huggingface/token)
fi
if [ -n "${BUCKET:-}" ] && ! mountpoint -q "/mnt/$BUCKET"; then
  sudo mkdir -p "/mnt/$BUCKET"
  sudo chown "$(id -u)" "/mnt/$BUCKET"
  gcsfuse --implicit-dirs --rename-dir-limit=100000 --metadata-cache-ttl-secs=0 \
    --metadata-cache-negative-ttl-secs=0 "$BUCKET" "/mnt/$BUCKET"
fi
JAX_PLATFORMS=cpu .venv/bin/python -c 'import jaxrl_llm, jax; print("ready: jax", jax.__version__)'
