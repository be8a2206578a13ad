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

@load.sh@
# ---- activation ----------------------------------------------------------------------------------
_env_activate() {
    # The options of the caller's shell come back at the end: `module` knows neither -e nor -u.
    local -
    set +eu +o pipefail
    unset -v CDPATH
    local here venv made site ENV_KIND=''
    # shellcheck disable=SC2034 # what config.sh sets does not go into the caller's shell
    local ENV_NAME='' ENV_PYTHON='' ENV_INSTALLER=''
    here=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P) || return 1
    venv=$here/venv
    if [ ! -f "$venv/.made" ] || [ ! -f "$venv/.installed" ]; then
        _env_error "$venv is not there or not finished; on the login node run: bash '$here/setup.sh'"
        return 1
    fi
    made=$(_env_said path "$venv/.made")
    if ! [ "$made" -ef "$venv" ]; then
        _env_error "$venv was made as $made and does not work here." \
            "On the login node run: bash '$here/setup.sh'"
        return 1
    fi
    made=$(_env_said machine "$venv/.made")
    if [ "$made" != "$(uname -m)" ]; then
        _env_error "$venv was made for $made, and this machine is $(uname -m);" \
            "run on one of its kind: bash '$here/setup.sh'"
        return 1
    fi
    _env_load "$here" || return 1
    if [ ! -x "$venv/bin/python" ]; then
        _env_error "the Python of $venv is not on this machine: $(readlink -f "$venv/bin/python")." \
            "On the login node run: bash '$here/setup.sh'"
        return 1
    fi
    # shellcheck source=/dev/null
    source "$venv/bin/activate" || return 1
    # ~/.local comes before a module's packages, and belongs to no environment.
    export PYTHONNOUSERSITE=1
    site=$(echo "$venv"/lib/python*/site-packages)
    # Modules put their packages on PYTHONPATH, which comes before those of a venv.
    if [ "$ENV_KIND" = modules ] || [ -n "${PYTHONPATH:-}" ]; then
        PYTHONPATH=:${PYTHONPATH:-}:
        PYTHONPATH=$site${PYTHONPATH//":$site:"/:}
        export PYTHONPATH=${PYTHONPATH%:}
    fi
    made=$(_env_requirements "$venv/bin/python" digest "$here/requirements.txt")
    if [ "$(_env_said requirements "$venv/.installed")" != "$made" ] ||
        [ "$(_env_said lock "$venv/.installed")" != "$(_env_sum "$here/requirements.lock")" ]; then
        _env_error "warning: $venv is older than its requirements; run: bash '$here/setup.sh'"
    fi
    return 0
}

if _env_activate; then
    unset -f _env_activate _env_error _env_find_module _env_load _env_requirements _env_source _env_sum _env_said
else
    unset -f _env_activate _env_error _env_find_module _env_load _env_requirements _env_source _env_sum _env_said
    return 1
fi
