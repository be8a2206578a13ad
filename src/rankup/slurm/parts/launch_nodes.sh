launch() { # torchrun on this node; it starts the ranks
    trap '' USR1 # it would die of it; the ranks install a handler of their own
    exec torchrun --nnodes="$nodes" --nproc-per-node="$ranks" --max-restarts=0 \
        --node-rank="$SLURM_NODEID" --master-addr="$master_addr" --master-port="$master_port" \
        --no-python -- "${rank[@]}" "$@"
}
