# shellcheck shell=bash disable=SC2034
# Settings of this environment. setup.sh and activate.sh source this file; it is yours.

ENV_KIND=wheels # modules: the site's modules and a venv; wheels: wheels only
ENV_NAME='my project' # in the prompt
ENV_PYTHON=python3.12 # for wheels; modules bring their own

# $HOME is small: where caches lie on JUWELS Booster, if nothing else is set.
[ -n "${HF_HOME:-}" ] || HF_HOME=/p/project1/abc/ann/cache/huggingface
[ -n "${TORCH_HOME:-}" ] || TORCH_HOME=/p/project1/abc/ann/cache/torch
[ -n "${FASTAI_HOME:-}" ] || FASTAI_HOME=/p/project1/abc/ann/cache/fastai
[ -n "${TRITON_CACHE_DIR:-}" ] || TRITON_CACHE_DIR=/p/project1/abc/ann/cache/triton
[ -n "${PIP_CACHE_DIR:-}" ] || PIP_CACHE_DIR=/p/project1/abc/ann/cache/pip
[ -n "${UV_CACHE_DIR:-}" ] || UV_CACHE_DIR=/p/project1/abc/ann/cache/uv
[ -n "${RANKUP_CACHE:-}" ] || RANKUP_CACHE=/p/project1/abc/ann/cache
export HF_HOME TORCH_HOME FASTAI_HOME TRITON_CACHE_DIR PIP_CACHE_DIR UV_CACHE_DIR RANKUP_CACHE
