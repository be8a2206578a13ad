launcher=launch
if ! command -v rankup >/dev/null; then
    echo "rankup: this job has no rankup on PATH, so nothing is staged or mounted:" \
        "${stage[*]} ${mounts[*]}" >&2
else
    launcher=launch_staged
    if [ "${#stage[@]}" -gt 0 ]; then
        on_every_node --kill-on-bad-exit=1 stage_node || {
            on_every_node --time=2 release_node # of nodes that had it already
            end_life 1 "staging failed on the node named above; torch was not started anywhere"
        }
    fi
fi
on_every_node --kill-on-bad-exit=1 "$launcher" "${words[@]}"
code=$?
# Where ranks failed, srun may have killed those who would have done it.
if [ "$code" -ne 0 ] && [ "$launcher" != launch ]; then
    on_every_node --time=2 release_node
fi
