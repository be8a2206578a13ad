launch() { # the crew of this node: it starts the workers, and none of them ends the others
    trap '' USR1 # the workers install a handler of their own
    exec "${rank[@]}" --nodes="$nodes" --node="$SLURM_NODEID" --nproc="$ranks" \
        --store="${master_addr:-127.0.0.1}:${master_port:-0}" -- "$@"
}
