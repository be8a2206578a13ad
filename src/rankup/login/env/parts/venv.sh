
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
