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

_env_source() { # _env_source FILE HINT: say so where it fails, or ends the shell
    local _env_file=$1 _env_hint=$2 _env_before _env_exit _env_ours _env_code
    _env_before=$(trap -p EXIT)
    eval "set -- $_env_before" # trap -- ACTION EXIT
    _env_exit=${3:-exit 1}
    set --
    trap '_env_error "the shell ended in $_env_file: it calls exit, or was killed"
        (exit 1)
        eval "$_env_exit"' EXIT
    _env_ours=$(trap -p EXIT)
    # shellcheck source=/dev/null
    source "$_env_file"
    _env_code=$?
    if [ "$(trap -p EXIT)" = "$_env_ours" ]; then # else the file has set one of its own
        eval "${_env_before:-trap - EXIT}"
    fi
    [ "$_env_code" = 0 ] || _env_error "$_env_file failed; what it said stands above. $_env_hint"
    return "$_env_code"
}

_env_load() { # _env_load FOLDER: source config.sh, and for the kind `modules` modules.sh
    _env_source "$1/config.sh" "Its last command has to succeed" || return 1
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
    _env_source "$1/modules.sh" "\`module spider NAME\` lists the versions that there are" || return 1
}

_env_sum() { # sha256 of a file; - where there is none
    if [ -f "$1" ] && [ -r "$1" ]; then sha256sum <"$1" | cut -d ' ' -f 1; else echo -; fi
}

_env_said() { # _env_said NAME FILE: the value of NAME=VALUE in a stamp
    sed -n "s/^$1=//p" "$2" 2>/dev/null
}

_env_requirements() { # _env_requirements PYTHON digest|names|lock FILE
    "$1" -IS - "$2" "$3" <<'END'
@requirements.py@
END
}

