launch() { # torchrun on the one node; it starts the ranks
    trap '' USR1 # it would die of it; the ranks install a handler of their own
    exec torchrun --standalone --nproc-per-node="$ranks" --max-restarts=0 --no-python -- \
        "${rank[@]}" "$@"
}
