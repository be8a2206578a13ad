
# ---- what to do ----------------------------------------------------------------------------------
main() {
    local why
    acquire
    # That of this environment itself may be active, and is perhaps about to go.
    PATH=${PATH//"$venv/bin:"/}
    set +eu +o pipefail # modules know nothing of them
    _env_load "$here" || exit 1
    set -euo pipefail
    # Neither ~/.local nor what the user has on PYTHONPATH for other work belongs to an environment.
    export PYTHONNOUSERSITE=1 PIP_USER=0
    if [ "$ENV_KIND" = wheels ]; then unset PYTHONPATH; fi
    # Where there is no network, pip would try for many minutes.
    if [ -n "${SLURM_JOB_ID:-}" ]; then export PIP_RETRIES=${PIP_RETRIES:-1}; fi
    modules=-
    if [ "$ENV_KIND" = modules ]; then modules=$(_env_sum modules.sh); fi
    find_python
    find_wheel "${1:-install}"
    use_room
    if [ "${1-}" = lock ]; then
        write_lock
        return
    fi
    if [ -f requirements.lock ]; then
        why=$(why_lock_unfit)
        if [ -n "$why" ]; then
            fail "requirements.lock is stale: $why. Write it anew with \`rankup env lock\` (bash" \
                "setup.sh lock), or remove it to install without one. Nothing was changed"
        fi
    fi
    why=$(why_anew)
    if [ -z "$why" ] && [ "$(cat venv/.installed 2>/dev/null)" = "$(wanted)" ]; then
        drop_older_wheels
        say "venv/ is up to date"
        return
    fi
    find_packages
    if works; then try_first "$why"; fi
    if [ -n "$why" ]; then
        say "making venv/: $why"
        make_venv
    fi
    install_packages
    drop_older_wheels
    say "done; activate it with: source '$here/activate.sh'"
}

use_room() { # a node whose /tmp is tiny has no room to unpack torch
    local free
    if [ -n "${TMPDIR:-}" ]; then return 0; fi
    free=$(df -Pk /tmp 2>/dev/null | awk 'NR == 2 { print $4 }')
    if [ -n "$free" ] && [ "$free" -lt 4000000 ]; then
        TMPDIR=$(mktemp -d "$here/.tmp-XXXXXX")
        export TMPDIR
        made_here+=("$TMPDIR")
    fi
}

main "$@"
