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
