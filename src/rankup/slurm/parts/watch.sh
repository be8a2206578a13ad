watch_node() { # the sampler of this node, beside its ranks; it ends with them
    local launcher=$BASHPID # becomes torchrun
    if command -v rankup >/dev/null; then
        (trap '' USR1 && exec rankup monitor "$RANKUP_RUN_DIR" --parent "$launcher" \
            --ranks "$ranks") </dev/null &
    else
        echo "rankup: node ${SLURMD_NODENAME:-$(hostname)} is not sampled: no rankup on PATH" >&2
    fi
}
