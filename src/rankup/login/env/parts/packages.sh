
# ---- its packages --------------------------------------------------------------------------------
# venv/.installed says of which files they are, and is written once all are there.
find_wheel() { # sets wheel (rankup's own: the newest, or that of the lock) and wheel_sum
    local file
    wheel='' wheel_sum=-
    while IFS= read -r file; do
        wheel=$file wheel_sum=$(_env_sum "$file")
        if [ "$1" = install ] && grep -qsF "sha256:$wheel_sum" requirements.lock; then break; fi
    done < <(find wheels -maxdepth 1 -name 'rankup-*.whl' -printf '%T@ %p\n' 2>/dev/null |
        sort -n | cut -d ' ' -f 2-)
    if [ -z "$wheel" ]; then
        say "there is no wheel of rankup in wheels/, so rankup will not be in it; \`rankup env create\` writes one"
    fi
}

wanted() { # the text of venv/.installed, as it would be written now
    cat <<END
name=${ENV_NAME:-env}
requirements=$(_env_digest requirements.txt)
lock=$(_env_sum requirements.lock)
wheel=$wheel_sum
kernel=$([ -f kernel.sh ] && echo yes || echo -)
END
}

why_lock_unfit() { # why requirements.lock does not fit; nothing where it does
    local lock=requirements.lock
    if ! grep -qxF "# requirements: $(_env_digest requirements.txt)" "$lock"; then
        echo "requirements.txt has changed since"
    elif ! grep -qxF "# for: $(lock_is_for)" "$lock"; then
        echo "it is for $(sed -n 's/^# for: //p' "$lock"), and this is $(lock_is_for)"
    elif [ -n "$wheel" ] && ! grep -qF "sha256:$wheel_sum" "$lock"; then
        echo "it names another rankup than the one in wheels/"
    elif [ -f kernel.sh ] && ! grep -q '^ipykernel==' "$lock"; then
        echo "it lacks ipykernel, which kernel.sh needs"
    fi
}

lock_is_for() { echo "Python $version, $machine, kind $ENV_KIND, modules.sh $modules"; }

find_installer() { # sets installer: uv where it may be used, else pip
    installer=${ENV_INSTALLER:-}
    case $installer in
    pip) return 0 ;;
    uv)
        command -v uv >/dev/null || fail "config.sh says ENV_INSTALLER=uv, and there is no uv"
        return 0
        ;;
    '') ;;
    *) fail "config.sh: ENV_INSTALLER is '$installer'; it has to be uv, pip or empty" ;;
    esac
    installer=pip
    # uv would install what the modules have once more: it does not look at them.
    if [ "$ENV_KIND" = modules ] || ! command -v uv >/dev/null; then return 0; fi
    if pip_is_configured && ! uv_is_configured; then
        say "installing with pip: its settings say where packages come from, and uv does not read them"
        return 0
    fi
    installer=uv
}

pip_is_configured() {
    local file
    if [ -n "${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}${PIP_FIND_LINKS:-}${PIP_NO_INDEX:-}${PIP_CONSTRAINT:-}" ]; then
        return 0
    fi
    for file in "${PIP_CONFIG_FILE:-}" /etc/pip.conf /etc/xdg/pip/pip.conf "${HOME:-}/.pip/pip.conf" \
        "${XDG_CONFIG_HOME:-${HOME:-}/.config}/pip/pip.conf"; do
        if [ -r "$file" ] && grep -qE '^ *(index-url|extra-index-url|find-links|no-index|constraint)' "$file"; then
            return 0
        fi
    done
    return 1
}

uv_is_configured() {
    [ -n "${UV_INDEX_URL:-}${UV_DEFAULT_INDEX:-}${UV_INDEX:-}${UV_EXTRA_INDEX_URL:-}${UV_FIND_LINKS:-}${UV_OFFLINE:-}${UV_CONSTRAINT:-}${UV_CONFIG_FILE:-}" ] ||
        [ -r "${XDG_CONFIG_HOME:-${HOME:-}/.config}/uv/uv.toml" ] || [ -r /etc/uv/uv.toml ]
}

find_links() { # fills links: the folder of rankup's wheel, beside those the user has set
    local set one
    links=(--find-links wheels)
    if [ "$installer" = uv ]; then # an option takes the place of uv's variable; pip has both
        IFS=, read -ra set <<<"${UV_FIND_LINKS:-}"
        for one in "${set[@]}"; do links+=(--find-links "$one"); done
    fi
}

drop_unfinished() { # a package whose installation was killed looks as if it were there
    local site info
    for site in venv/lib/python*/site-packages; do
        rm -rf "$site"/~*
        for info in "$site"/*.dist-info; do
            if [ -d "$info" ] && ! [ -f "$info/INSTALLER" ]; then rm -rf "$info"; fi
        done
    done
}

install_packages() {
    local what why links site
    find_installer
    find_links
    if [ -f requirements.lock ]; then
        what=(--require-hashes "${links[@]}" -r requirements.lock)
        say "installing what requirements.lock names, with $installer"
    else
        what=(-r requirements.txt)
        if [ -n "$wheel" ]; then what+=("./$wheel"); fi
        if [ -f kernel.sh ]; then what+=(ipykernel); fi
        say "installing what requirements.txt names, with $installer"
    fi
    rm -f venv/.installed
    drop_unfinished
    asked_for >venv/.names
    if [ "$installer" = uv ]; then
        # Thousands of ranks that compile at once would be slow on a parallel file system.
        uv pip install --compile-bytecode --python "$venv/bin/python" "${what[@]}" || explain_failure
    else
        site=$(echo "$venv"/lib/python*/site-packages)
        PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} \
            "$venv/bin/python" -m pip install "${what[@]}" || explain_failure
    fi
    wanted >venv/.installed.new
    mv venv/.installed.new venv/.installed
}

explain_failure() {
    if [ -n "${SLURM_JOB_ID:-}" ]; then
        fail "$installer failed, see above. This is job $SLURM_JOB_ID, and compute nodes often have" \
            "no network: run it on the login node: bash '$here/setup.sh'"
    fi
    fail "$installer failed, see above. Once that is mended, the same command goes on from here"
}
