# ---- data into each node: the ranks find the copies by themselves --------------------------------
# The folder of this attempt's copies: not every Slurm sets SLURM_RESTART_COUNT. Of the runs in one
# allocation each has its own.
RANKUP_STAGE_JOB=job-$SLURM_JOB_ID.${RANKUP_INTERACTIVE:+run-}${RANKUP_INTERACTIVE:-$rankup_start}
export RANKUP_STAGE_JOB

stage_node() { # before torch is started anywhere; what does not fit is refused here
    trap '' USR1
    trap 'sleep 0.3; release_node; exit 143' TERM # scancel, the time limit: Slurm tells rankup, too
    local node=${SLURMD_NODENAME:-$(hostname)} code
    (
        set -o pipefail
        export LOCAL_WORLD_SIZE=$ranks # for which it keeps memory
        rankup stage ${stage_options[@]+"${stage_options[@]}"} -- "${stage[@]}" 2>&1 | {
            trap '' TERM # what is said at the end is to be heard
            sed --unbuffered "s/^/stage: node $node: /" >&2
        }
    ) &
    wait "$!"
    code=$?
    if [ "$code" -ne 0 ]; then release_node; fi
    return "$code"
}

launch_staged() { # a later step could not give the memory back: a job that ends starts no step
    trap '' USR1
    trap 'ended=1; release_node' TERM # scancel, the time limit; the ranks have open what they read
    local child code ended=1
    if [ "${#mounts[@]}" -gt 0 ]; then # by a process of this step, which ends with it
        if ! RANKUP_MOUNTS=$(rankup stage --mount -- "${mounts[@]}"); then
            echo "rankup: node ${SLURMD_NODENAME:-$(hostname)} cannot mount ${mounts[*]}" >&2
            return 1
        fi
        RANKUP_MOUNTS=${RANKUP_MOUNTS//$'\n'/:}
        export RANKUP_MOUNTS # the folders, in the order of --mount
    fi
    launch "$@" <&0 &
    child=$!
    while [ -n "$ended" ]; do # the trap ends a wait, but not torchrun
        ended=
        wait "$child"
        code=$?
    done
    release_node
    return "$code"
}

release_node() { # with what a kill has left of a copy
    timeout 25 rankup stage --release >&2
}
