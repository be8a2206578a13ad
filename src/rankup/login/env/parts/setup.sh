# Makes venv/ from requirements.txt, or from requirements.lock where that is there, and, for the
# kind `modules`, from modules.sh:
#     bash setup.sh         make it, or bring it up to date; what has not changed is not done again
#     bash setup.sh lock    write requirements.lock: versions and hashes of what would be installed
# Run it where there is a network: on a login node.

if [ "${BASH_SOURCE[0]}" != "$0" ]; then
    echo "setup.sh is not to be sourced; run: bash ${BASH_SOURCE[0]}" >&2
    return 1
fi
set -euo pipefail
unset -v CDPATH
here=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
cd -- "$here"
venv=$here/venv

say() { printf '%s\n' "setup.sh: $*"; }
fail() {
    printf '%s\n' "setup.sh: $*" >&2
    exit 1
}

case ${1-} in
'' | lock) ;;
*) fail "it takes no word but lock, and got '$1'" ;;
esac
case $here in
*[:\$\`\"\\[:cntrl:]]*)
    # The activate of Python's own venv has the path between double quotes.
    fail "$(printf %q "$here"): the path has a ':', which cannot stand in PATH, or one of \$ \` \" \\ or" \
        "a control character, which venv's own activate would run; choose another folder"
    ;;
esac

@load.sh@
# ---- one setup at a time -------------------------------------------------------------------------
owned='' temporary=() # what is to go at the end
finish() {
    local code=$?
    if [ "${#temporary[@]}" -gt 0 ]; then rm -rf -- "${temporary[@]}"; fi
    if [ -n "$owned" ]; then rm -rf .lock; fi
    exit "$code"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

take_lock() { # .lock is a folder, since making one is atomic everywhere; its file names the owner
    local host='' pid='' said=''
    while ! mkdir .lock 2>/dev/null; do
        [ -w . ] || fail "$here cannot be written to"
        IFS=: read -r host pid 2>/dev/null <.lock/owner || true
        if [ -n "$host" ] && [ "$host" != "$HOSTNAME" ]; then
            fail "process $pid on $host is at work here. If that is not so any more: rm -r '$here/.lock'"
        # It, or what it has left running in its process group.
        elif [ -z "$pid" ] || kill -0 "$pid" 2>/dev/null || kill -0 -- "-$pid" 2>/dev/null; then
            [ -n "$said" ] || say "waiting for process ${pid:-?}, which is at work here"
            said=yes
            sleep 1
        elif mv -T .lock ".lock-$$" 2>/dev/null && [ "$(cat ".lock-$$/owner")" != "$host:$pid" ]; then
            mv -nT ".lock-$$" .lock # another one was quicker to find that the owner is dead
        fi
    done
    owned=yes
    echo "$HOSTNAME:$$" >.lock/owner
    rm -rf .lock-* .tmp-* # of one that was killed
}

# ---- venv/ ---------------------------------------------------------------------------------------
# venv/.made says what it was made of and for, and is written once it is whole.
find_python() { # sets base (the Python that venv/ is made with), version and machine
    local python=${ENV_PYTHON:-python3} facts new
    if [ "$ENV_KIND" = modules ]; then python=python3; fi # that of the modules
    if ! command -v "$python" >/dev/null && [ "$python" != python3 ]; then
        say "ENV_PYTHON=$python of config.sh is not there any more; taking python3"
        python=python3
    fi
    command -v "$python" >/dev/null || fail "there is no $python; name one with ENV_PYTHON in config.sh"
    facts=$("$python" -c 'import os, platform, sys
print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
print("%d.%d" % sys.version_info[:2])
print(platform.machine())
print(sys.version_info >= (3, 10))') || fail "$(command -v "$python") does not start"
    { read -r base && read -r version && read -r machine && read -r new; } <<<"$facts"
    if [ "$new" != True ]; then
        fail "$base is Python $version, and rankup needs 3.10: load a newer Python in modules.sh," \
            "or name one with ENV_PYTHON in config.sh (kind wheels)"
    fi
}

made_of() { # the text of venv/.made, as it would be written now
    cat <<END
path=$venv
kind=$ENV_KIND
machine=$machine
python=$version $base
modules=$modules
END
}

why_anew() { # why venv/ has to be made anew; nothing where it need not
    local key was gone
    key=$(made_of | diff venv/.made - 2>/dev/null | sed -n '/^> /{s/^> \([a-z]*\)=.*/\1/p;q}')
    was=$(_env_said "${key:-none}" venv/.made)
    if [ ! -e venv ]; then
        echo "it is not there"
    elif [ ! -f venv/.installed ] || [ ! -f venv/.made ]; then
        echo "it was not finished, or not made by setup.sh"
    elif [ "$key" = path ]; then
        echo "it was made as $was, and moved or copied here"
    elif [ "$key" = modules ]; then
        echo "modules.sh has changed"
    elif [ -n "$key" ]; then
        echo "its $key was $was, and is $(made_of | sed -n "s/^$key=//p") now"
    elif ! venv/bin/python -m pip --version >/dev/null 2>&1; then
        echo "its Python, or pip, does not start any more"
    else
        # A package that nobody asks for any more would win over that of a module.
        gone=$(_env_requirements "$base" names "$source" | LC_ALL=C comm -23 venv/.names - | sed -n 1p)
        if [ -n "$gone" ]; then echo "$gone is not asked for any more"; fi
    fi
}

new_venv() { # new_venv FOLDER [OPTION...]: an empty one; the modules' packages are seen in it
    local folder=$1 options=("${@:2}")
    if [ "$ENV_KIND" = modules ]; then options+=(--system-site-packages); fi
    "$base" -c 'import ensurepip' 2>/dev/null ||
        fail "$base lacks ensurepip. Debian and Ubuntu: apt-get install python3-venv"
    "$base" -m venv --clear "${options[@]}" "$folder"
}

make_venv() {
    local name=${ENV_NAME:-env}
    rm -f venv/.made venv/.installed
    # bash runs what stands in a prompt as $(...).
    new_venv "$venv" --prompt "${name//[^[:alnum:]_.+ -]/-}"
    echo '*' >venv/.gitignore
    made_of >venv/.made.new
    mv venv/.made.new venv/.made
}

# ---- its packages --------------------------------------------------------------------------------
# venv/.installed says of which files they are, and is written once all are there.
wanted() { # the text of venv/.installed, as it would be written now
    cat <<END
name=${ENV_NAME:-env}
requirements=$digest
lock=$(_env_sum requirements.lock)
END
}

pip_in() { # pip_in VENV OPTION...: install the packages; what the venv has comes before modules
    local site pip
    site=$(echo "$1"/lib/python*/site-packages)
    pip=(env "PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}" "$1/bin/python" -m pip install "${@:2}")
    if [ ! -f requirements.lock ]; then
        "${pip[@]}" -r requirements.txt
        return
    fi
    "${pip[@]}" --require-hashes -r <(grep -v '^-e ' requirements.lock) || return
    # A folder has no hash, with which pip would refuse it; what it needs is in the lock.
    if grep -q '^-e ' requirements.lock; then
        "${pip[@]}" --no-deps -r <(grep '^-e ' requirements.lock)
    fi
}

try_first() { # try_first WHY_ANEW: end here, where the packages cannot be had, and keep what works
    local try=$venv
    say "venv/ stays as it is until all that $source names has been found"
    if [ -n "$1" ]; then
        try=$here/.tmp-try
        temporary+=("$try")
        new_venv "$try"
    fi
    pip_in "$try" --quiet --dry-run || explain_failure "venv/ is as it was, and older than $source"
}

install_packages() {
    say "installing what $source names"
    rm -f venv/.installed
    _env_requirements "$base" names "$source" >venv/.names
    pip_in "$venv" || explain_failure "Once that is mended, run the same command again"
    wanted >venv/.installed.new
    mv venv/.installed.new venv/.installed
}

explain_failure() { # explain_failure [SENTENCE]
    if [ -n "${SLURM_JOB_ID:-}" ]; then
        fail "pip failed, see above. This is job $SLURM_JOB_ID, and compute nodes often have" \
            "no network: run it on the login node: bash '$here/setup.sh'${1:+. $1}"
    fi
    fail "pip failed, see above${1:+. $1}"
}

# ---- requirements.lock ---------------------------------------------------------------------------
lock_is_for() { echo "Python $version, $machine, kind $ENV_KIND, modules.sh $modules"; }

why_lock_unfit() { # why requirements.lock does not fit; nothing where it does
    local lock=requirements.lock
    if ! grep -qxF "# requirements: $digest" "$lock"; then
        echo "requirements.txt has changed since"
    elif ! grep -qxF "# for: $(lock_is_for)" "$lock"; then
        echo "it is for $(sed -n 's/^# for: //p' "$lock"), and this is $(lock_is_for)"
    fi
}

write_lock() { # in an empty venv, so that what is in venv/ plays no role; modules do
    local work=$here/.tmp-lock line
    temporary+=("$work")
    mkdir "$work"
    say "looking for versions"
    new_venv "$work/venv"
    "$work/venv/bin/python" -m pip install --quiet --dry-run --report "$work/report" \
        -r requirements.txt || explain_failure
    {
        echo "# Written by \`rankup env lock\` (bash setup.sh lock); \`bash setup.sh\` installs from it."
        echo "# for: $(lock_is_for)"
        echo "# requirements: $digest"
        _env_requirements "$base" lock "$work/report"
    } >"$work/lock"
    # Folders and git repositories have none, and nothing could be installed.
    line=$(grep -E '^[^ #]' "$work/lock" | grep -vE '^-e |\\$' | head -n 1 || true)
    if [ -n "$line" ]; then
        fail "'$line' has no hash, so that it cannot be locked: give it as a wheel, or a folder" \
            "with -e, or work without a lock"
    fi
    mv "$work/lock" requirements.lock
    say "requirements.lock names $(grep -c '^[^ #]' requirements.lock) packages"
}

# ---- what to do ----------------------------------------------------------------------------------
main() {
    local why
    take_lock
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
    source=requirements.txt
    if [ -f requirements.lock ]; then source=requirements.lock; fi
    find_python
    digest=$(_env_requirements "$base" digest requirements.txt)
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
        say "venv/ is up to date"
        return
    fi
    if [ -f venv/.installed ]; then try_first "$why"; fi
    if [ -n "$why" ]; then
        say "making venv/: $why"
        make_venv
    fi
    install_packages
    say "done; activate it with: source '$here/activate.sh'"
}

main "$@"
