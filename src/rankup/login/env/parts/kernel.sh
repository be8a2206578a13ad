#!/bin/bash
# Starts a Jupyter kernel in this environment. That this file is here tells setup.sh to install
# ipykernel.
here=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=/dev/null
source "$here/activate.sh" || exit 1
exec python -m ipykernel_launcher "$@"
