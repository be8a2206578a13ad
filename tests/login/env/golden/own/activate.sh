#!/bin/bash
# From rankup, which replaces this file as long as nobody has changed it. sha256 a943b719a94565518f3a2e4e5583c03f7382fcf1cea08542beab6f98776e7cf0
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

# ---- settings and modules ------------------------------------------------------------------------
_env_error() { printf '%s\n' "$*" >&2; }

_env_find_module() { # `module` is a function of bash, which a job or `bash setup.sh` may not have
    local init
    for init in "${LMOD_PKG:-}/init/bash" "${MODULESHOME:-}/init/bash" \
        /etc/profile.d/lmod.sh /etc/profile.d/modules.sh; do
        if type module >/dev/null 2>&1; then return 0; fi
        # shellcheck disable=SC1090
        if [ -r "$init" ]; then source "$init"; fi
    done
    type module >/dev/null 2>&1
}

_env_load() { # _env_load FOLDER: source config.sh, and for the kind `modules` modules.sh
    # shellcheck source=/dev/null
    source "$1/config.sh" || return 1
    case ${ENV_KIND:-} in
    wheels) return 0 ;;
    modules) ;;
    *)
        _env_error "$1/config.sh: ENV_KIND is '${ENV_KIND:-}'; it has to be modules or wheels"
        return 1
        ;;
    esac
    if ! _env_find_module; then
        _env_error "$1: there is no 'module' command here. Work on a machine with modules," \
            "or say ENV_KIND=wheels in config.sh and run: bash setup.sh"
        return 1
    fi
    # shellcheck source=/dev/null
    if ! source "$1/modules.sh"; then
        _env_error "$1/modules.sh failed; what it said stands above. \`module spider NAME\` lists" \
            "the versions that there are"
        return 1
    fi
}

_env_digest() { # sha256 of requirements.txt with all files that it names, in this order
    _env_included "$1" 0 | while IFS= read -r file; do
        if [ -f "$file" ]; then cat -- "$file"; fi
    done 2>/dev/null | sha256sum | cut -d ' ' -f 1
}

_env_included() { # the file, and those it names with -r or -c, relative to itself
    local name
    printf '%s\n' "$1"
    if [ "$2" -ge 9 ] || ! [ -f "$1" ] || ! [ -r "$1" ]; then return 0; fi # pip says what is wrong
    # Byte by byte: in UTF-8 a line with a byte that is not would not match.
    LC_ALL=C sed -nE 's/^[ \t]*(-[rc]|--(requirement|constraint)[ \t=])[ \t]*([^[:space:]#]+).*/\3/p' "$1" |
        while IFS= read -r name || [ -n "$name" ]; do # the last line may lack its end
            case $name in
            *://*) ;;
            /*) _env_included "$name" "$(($2 + 1))" ;;
            *) _env_included "$(dirname -- "$1")/$name" "$(($2 + 1))" ;;
            esac
        done
}

_env_sum() { # sha256 of a file; - where there is none
    if [ -f "$1" ] && [ -r "$1" ]; then sha256sum <"$1" | cut -d ' ' -f 1; else echo -; fi
}

_env_said() { # _env_said NAME FILE: the value of NAME=VALUE in a stamp
    sed -n "s/^$1=//p" "$2" 2>/dev/null
}

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
    if [ "$(_env_said requirements "$venv/.installed")" != "$(_env_digest "$here/requirements.txt")" ] ||
        [ "$(_env_said lock "$venv/.installed")" != "$(_env_sum "$here/requirements.lock")" ]; then
        _env_error "warning: $venv is older than its requirements; run: bash '$here/setup.sh'"
    fi
    return 0
}

if _env_activate; then
    unset -f _env_activate _env_error _env_find_module _env_load _env_digest \
        _env_included _env_sum _env_said
else
    unset -f _env_activate _env_error _env_find_module _env_load _env_digest \
        _env_included _env_sum _env_said
    return 1
fi
