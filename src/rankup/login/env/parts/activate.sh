# Activates this environment, in a shell or in a job:    source activate.sh
# It loads the modules of modules.sh (kind `modules`) and puts venv/ before them.

if [ -z "${BASH_VERSION:-}" ]; then
    echo "activate.sh is for bash; start one first: bash" >&2
    # shellcheck disable=SC2317
    return 1 2>/dev/null || exit 1
fi
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    echo "activate.sh has to be sourced: source $0" >&2
    exit 1
fi

