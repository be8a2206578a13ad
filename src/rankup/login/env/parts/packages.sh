
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

drop_older_wheels() { # those that were put here before the one that is used; newer ones are somebody's
    if [ -n "$wheel" ]; then
        find wheels -maxdepth 1 -name 'rankup-*.whl' ! -newer "$wheel" ! -path "$wheel" -delete
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
    if pip_alone_says "$index_in_pip" "$index_in_uv" INDEX_URL EXTRA_INDEX_URL FIND_LINKS NO_INDEX -- \
        INDEX_URL DEFAULT_INDEX INDEX EXTRA_INDEX_URL FIND_LINKS OFFLINE; then
        say "installing with pip: its settings say where packages come from, and uv does not read them"
    elif pip_alone_says constraint constraint-dependencies CONSTRAINT -- CONSTRAINT; then
        say "installing with pip: its settings constrain versions, and uv does not read them"
    else
        installer=uv
    fi
}

# Keys of their files, as grep knows them.
index_in_pip='(extra[-_])?index[-_]url|find[-_]links|no[-_]index'
index_in_uv='\[\[index\]\]|index[[:space:]]*=|(index|extra-index)-url|find-links|no-index|offline'

# pip_alone_says KEYS_OF_PIP KEYS_OF_UV NAME... -- NAME...: whether pip's settings say something, in
# its files or in variables PIP_NAME, that uv's say neither in files nor in variables UV_NAME.
pip_alone_says() {
    local pip=$1 uv=$2 config=${XDG_CONFIG_HOME:-${HOME:-}/.config} names=()
    shift 2
    while [ "$1" != -- ]; do
        names+=("PIP_$1")
        shift
    done
    shift
    local files=("${PIP_CONFIG_FILE:-}" /etc/pip.conf /etc/xdg/pip/pip.conf
        "${HOME:-}/.pip/pip.conf" "$config/pip/pip.conf")
    if [ "${PIP_CONFIG_FILE:-}" = /dev/null ]; then files=(/dev/null); fi # pip then reads none
    is_said "$pip" "${names[@]}" -- "${files[@]}" &&
        ! is_said "$uv" "${@/#/UV_}" -- "${UV_CONFIG_FILE:-}" "$config/uv/uv.toml" /etc/uv/uv.toml
}

is_said() { # is_said KEYS VARIABLE... -- FILE...: whether one is set, or one has such a key
    local keys=$1
    shift
    while [ "$1" != -- ]; do
        if [ -n "${!1:-}" ]; then return 0; fi
        shift
    done
    shift
    while [ "$#" -gt 0 ]; do
        if [ -f "$1" ] && grep -qsE "^[[:space:]]*($keys)" "$1"; then return 0; fi
        shift
    done
    return 1
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

find_packages() { # sets installer, links and packages (the words that say what to install)
    find_installer
    find_links
    if [ -f requirements.lock ]; then
        source=requirements.lock
        packages=(--require-hashes "${links[@]}" -r requirements.lock)
    else
        source=requirements.txt
        packages=(-r requirements.txt)
        if [ -n "$wheel" ]; then packages+=("./$wheel"); fi
        if [ -f kernel.sh ]; then packages+=(ipykernel); fi
    fi
}

try_first() { # try_first WHY_ANEW: end here, where the packages cannot be had, and keep what works
    local python=$venv/bin/python work
    say "venv/ stays as it is until all that $source names has been found"
    if [ -n "$1" ]; then
        work=$(mktemp -d "$here/.tmp-XXXXXX")
        made_here+=("$work")
        new_venv "$work/venv"
        python=$work/venv/bin/python
    fi
    run_installer "$python" --quiet --dry-run ||
        explain_failure "venv/ is as it was, and older than $source"
    if [ -n "$1" ]; then rm -rf -- "$work"; fi
}

run_installer() { # run_installer PYTHON OPTION...
    local python=$1 options=("${@:2}") site
    if [ "$installer" = uv ]; then
        uv pip install "${options[@]}" --python "$python" "${packages[@]}"
    else
        site=$(echo "${python%/bin/python}"/lib/python*/site-packages)
        PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} \
            "$python" -m pip install "${options[@]}" "${packages[@]}"
    fi
}

install_packages() {
    local options=()
    say "installing what $source names, with $installer"
    rm -f venv/.installed
    drop_unfinished
    asked_for >venv/.names
    # Thousands of ranks that compile at once would be slow on a parallel file system.
    if [ "$installer" = uv ]; then options=(--compile-bytecode); fi
    run_installer "$venv/bin/python" "${options[@]}" ||
        explain_failure "Once that is mended, the same command goes on from here"
    wanted >venv/.installed.new
    mv venv/.installed.new venv/.installed
}

explain_failure() { # explain_failure [SENTENCE]
    if [ -n "${SLURM_JOB_ID:-}" ]; then
        fail "$installer failed, see above. This is job $SLURM_JOB_ID, and compute nodes often have" \
            "no network: run it on the login node: bash '$here/setup.sh'${1:+. $1}"
    fi
    fail "$installer failed, see above${1:+. $1}"
}
