# shellcheck shell=bash disable=SC2034
# Settings of this environment. setup.sh and activate.sh source this file; it is yours.

ENV_KIND=wheels # modules: the site's modules and a venv; wheels: wheels only
ENV_NAME='my project' # in the prompt
ENV_PYTHON=python3.12 # for wheels; modules bring their own
