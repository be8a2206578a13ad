launch() { # torchrun on this node; it starts the ranks
    trap '' USR1 # it would die of it; the ranks install a handler of their own
    local is_host=$((SLURM_NODEID == 0)) host=()
    # The first node alone goes by its address, which makes it the one whose rank is 0 (addresses
    # sort before names), and which the other nodes' ranks then connect to.
    if [ "$is_host" = 1 ]; then host=(--local-addr="$master_addr"); fi
    exec torchrun --nnodes="$nodes" --nproc-per-node="$ranks" --max-restarts=0 \
        --rdzv-backend=c10d --rdzv-endpoint="$master_addr:$master_port" \
        --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" --rdzv-conf="is_host=$is_host" \
        "${host[@]}" --no-python -- "${rank[@]}" "$@"
}
