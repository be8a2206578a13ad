
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
