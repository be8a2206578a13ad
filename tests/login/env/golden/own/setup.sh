#!/bin/bash
# From rankup, which replaces this file as long as nobody has changed it. sha256 d4f2558dcfc7819d5945816851860388e6183db80bab2d0194f29de6838b0bc3
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

# ---- one setup at a time -------------------------------------------------------------------------
# .lock/ holds a link for each owner so far, named 1, 2, ...; the last owner is the present one, and
# its link says who that is. Making a link is atomic on every file system and needs no flock. Who
# finds the last owner dead makes the next link: only one process can. It is made from within the
# folder that was looked at, which counts as long as it is still .lock: one that was given back in
# between has been renamed.
started() { # when a process was started, in ticks since boot; nothing once it has ended
    local fields
    fields=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return 0
    case $fields in
    [ZX]*) ;;
    *) cut -d ' ' -f 20 <<<"$fields" ;;
    esac
}

alive() { # alive PID START: the process, or what it has left running in its process group
    [ "$(started "$1")" = "$2" ] || kill -0 -- "-$1" 2>/dev/null
}

acquire() {
    local last owner host pid since refused=0 waited=0
    rm -rf .lock.* # of one that was killed while it gave the lock back
    while :; do
        mkdir -p .lock || fail "$here cannot be written to"
        if [ "$refused" -gt 100 ]; then fail "$here/.lock cannot be written to"; fi
        cd -P .lock 2>/dev/null || { refused=$((refused + 1)) && continue; } # gone again
        last=$(find . -mindepth 1 -printf '%f\n' 2>/dev/null | sort -n | tail -n 1)
        owner=$([ -z "$last" ] || readlink "$last" || true)
        IFS=: read -r host pid since <<<"$owner" || true
        if [ -z "$last" ] || { [ "$host" = "$HOSTNAME" ] && ! alive "$pid" "$since"; }; then
            if take "$((${last:-0} + 1))"; then
                cd -- "$here"
                owned=yes
                rm -rf .lock-* .tmp-* requirements.lock.new.* # of one that was killed
                return 0
            fi
            refused=$((refused + 1)) # somebody else was quicker
        elif [ -n "$host" ] && [ "$host" != "$HOSTNAME" ]; then
            fail "process $pid on $host is at work here. If that is not so any more: rm -r '$here/.lock'"
        elif [ "$waited" -ge 3600 ]; then
            fail "process $pid has been at work here for an hour. Once it has ended: rm -r '$here/.lock'"
        else
            if [ "$waited" -eq 0 ] && [ -n "$pid" ]; then
                say "waiting for process $pid, which is at work here"
            fi
            sleep 1
            waited=$((waited + 1))
        fi
        cd -- "$here"
    done
}

take() { # take NUMBER: make the link of that number in the working directory, if that is .lock
    ln -sT "$HOSTNAME:$$:$(started $$)" "$1" 2>/dev/null && [ . -ef "$here/.lock" ]
}

owned=
made_here=() # what is to go at the end
finish() {
    local code=$?
    if [ "${#made_here[@]}" -gt 0 ]; then rm -rf -- "${made_here[@]}"; fi
    # Renamed first, so that nobody takes the lock while its links go one by one.
    if [ -n "$owned" ]; then
        mv -T "$here/.lock" "$here/.lock.$$" || true
        rm -rf "$here/.lock.$$" || true # a link that comes just now is not worth a failure
    fi
    exit "$code"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- venv/ ---------------------------------------------------------------------------------------
# venv/.made says what it was made of and for, and is written once it is whole.
find_python() { # sets base (the Python that venv/ is made with), version and machine
    local python=${ENV_PYTHON:-python3} facts
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

why_anew() { # why venv/ has to be made anew; nothing where it need not
    local stamp=venv/.made path
    path=$(_env_said path "$stamp")
    if [ ! -e venv ]; then
        echo "it is not there"
    elif [ ! -f "$stamp" ]; then
        echo "it was not finished, or not made by setup.sh"
    elif ! [ "$path" -ef "$venv" ]; then
        echo "it was made as $path, and moved or copied here"
    elif [ "$(_env_said machine "$stamp")" != "$machine" ]; then
        echo "it was made for $(_env_said machine "$stamp"), and this is $machine"
    elif [ "$(_env_said kind "$stamp")" != "$ENV_KIND" ]; then
        echo "config.sh says ENV_KIND=$ENV_KIND now"
    elif [ "$(_env_said python "$stamp")" != "$version $base" ]; then
        echo "its Python was $(_env_said python "$stamp"), and is $version $base now"
    elif ! venv/bin/python -c '' 2>/dev/null; then
        echo "its Python does not start any more"
    elif ! head -n 2 venv/bin/pip 2>/dev/null | grep -qF "$path/bin/"; then
        echo "its programs belong to another environment, or pip is missing"
    elif [ "$(_env_said modules "$stamp")" != "$modules" ]; then
        echo "modules.sh has changed"
    else
        why_taken_out
    fi
}

why_taken_out() { # a package that nobody asks for any more would win over that of a module
    local gone
    [ -f venv/.names ] || return 0
    gone=$(asked_for | LC_ALL=C comm -23 venv/.names - | sed -n 1p)
    if [ -n "$gone" ]; then echo "$gone is not asked for any more"; fi
}

asked_for() { # the names of the packages that the lock, or requirements.txt and its files, ask for
    local file
    if [ -f requirements.lock ]; then
        cat requirements.lock
    else
        # awk ends a last line that lacks its end.
        _env_included requirements.txt 0 | while IFS= read -r file; do awk 1 <"$file" || true; done
        if [ -f kernel.sh ]; then echo ipykernel; fi
    fi 2>/dev/null | sed -E '
        s/(^|[[:space:]]+)[#\\].*//
        /^[[:space:]]*$/d
        /^[[:space:]]*(-[rc]|--)/d
        s/^[[:space:]]+//
        /^-|^[^[]*[:/]/b
        s/^([A-Za-z0-9._-]+).*/\L\1/
        s/[._]/-/g' | LC_ALL=C sort -u
}

works() { # whether venv/ can be activated as it is
    [ -f venv/.installed ] && [ "$(_env_said path venv/.made)" -ef "$venv" ] &&
        [ "$(_env_said machine venv/.made)" = "$machine" ] && venv/bin/python -c '' 2>/dev/null
}

new_venv() { # new_venv FOLDER [OPTION...]: an empty one; the modules' packages are seen in it
    local folder=$1 options=("${@:2}")
    if [ "$ENV_KIND" = modules ]; then options+=(--system-site-packages); fi
    if "$base" -c 'import ensurepip' 2>/dev/null; then
        "$base" -m venv --clear "${options[@]}" "$folder"
    elif command -v uv >/dev/null; then # Debian keeps ensurepip in a package of its own
        rm -rf -- "$folder"
        uv venv --quiet --seed --python "$base" "${options[@]}" "$folder"
    else
        fail "$base lacks ensurepip. Debian and Ubuntu: apt-get install python3-venv; elsewhere: uv"
    fi
}

make_venv() {
    local name=${ENV_NAME:-env}
    rm -f venv/.made venv/.installed
    # bash runs what stands in a prompt as $(...).
    new_venv "$venv" --prompt "${name//[^[:alnum:]_.+ -]/-}"
    echo '*' >venv/.gitignore
    cat >venv/.made.new <<END
path=$venv
kind=$ENV_KIND
machine=$machine
python=$version $base
modules=$modules
END
    mv venv/.made.new venv/.made
}

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

# ---- requirements.lock ---------------------------------------------------------------------------
write_lock() {
    local links new=requirements.lock.new.$$ work
    [ -n "$wheel" ] || fail "the lock has to name rankup, and wheels/ has none: rankup env create"
    find_installer
    find_links
    work=$(mktemp -d "$here/.lock-XXXXXX")
    made_here+=("$work" "$here/$new")
    basename "$wheel" | sed -E 's/^rankup-([^-]+)-.*/rankup==\1/' >"$work/own.in"
    if [ -f kernel.sh ]; then echo ipykernel >>"$work/own.in"; fi
    say "looking for versions, with $installer"
    if [ "$installer" = uv ]; then
        uv pip compile --quiet --generate-hashes --no-header --python "$base" "${links[@]}" \
            --output-file "$work/found" requirements.txt "$work/own.in" >/dev/null || explain_failure
    else
        lock_with_pip || explain_failure
    fi
    refuse_without_hash "$work/found"
    {
        echo "# Written by \`rankup env lock\` (bash setup.sh lock); \`bash setup.sh\` installs from it."
        echo "# for: $(lock_is_for)"
        echo "# requirements: $(_env_digest requirements.txt)"
        cat "$work/found"
    } >"$new"
    mv "$new" requirements.lock
    drop_older_wheels # only now: the old lock names one of them
    say "requirements.lock names $(grep -c '^[^ #]' requirements.lock) packages"
}

lock_with_pip() { # in an empty venv, so that what is in venv/ plays no role; modules do
    new_venv "$work/venv" &&
        "$work/venv/bin/python" -m pip install --quiet --dry-run --report "$work/report" \
            "${links[@]}" -r requirements.txt -r "$work/own.in" &&
        "$work/venv/bin/python" - "$work/report" >"$work/found" <<'END'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    found = json.load(file)["install"]
for item in sorted(found, key=lambda item: item["metadata"]["name"].lower()):
    name, version = item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"]
    source = item["download_info"]
    archive = source.get("archive_info", {})
    hashes = dict(archive.get("hashes") or {})
    if not hashes and "=" in archive.get("hash", ""):  # pip before 23
        hashes = dict([archive["hash"].split("=", 1)])
    line = f"{name} @ {source['url']}" if item.get("is_direct") else f"{name}=={version}"
    if "sha256" in hashes:
        line += f" \\\n    --hash=sha256:{hashes['sha256']}"
    print(line)
END
}

refuse_without_hash() { # folders and git repositories have none, and nothing could be installed
    local line
    line=$(grep -E '^[^ #]' "$1" | grep -vE '\\$' | head -n 1 || true)
    if [ -n "$line" ]; then
        fail "'$line' has no hash, so that it cannot be locked: give it as a wheel, or work without a lock"
    fi
}

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
