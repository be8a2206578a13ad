# ---- preflight: seconds, on every node, before torch is imported anywhere ------------------------
preflight() {
    trap '' USR1
    local node=${SLURMD_NODENAME:-$(hostname)} faults=0 path there
    fault() {
        echo "preflight: node $node: $1" >&2
        faults=1
    }
    if [ "$nodes" -gt 1 ] && [ "$SLURM_NODEID" = 0 ]; then hear_all & fi
    for path in "${needs[@]}"; do
        [ -r "$path" ] || fault "cannot read $path; is its file system mounted on compute nodes?"
    done
    [ -w "$RANKUP_RUN_DIR" ] || fault "cannot write to the run directory $RANKUP_RUN_DIR"
    for path in "${programs[@]}"; do
        command -v "$path" >/dev/null || fault "$path is not on PATH; is the environment complete?"
    done
    if [ "$nodes" -gt 1 ] && [ "$SLURM_NODEID" != 0 ]; then report_to_head || faults=1; fi
    there=${SLURM_GPUS_ON_NODE:-}
    if [ "$gpus" -gt 0 ] && [ -n "$there" ] && [ "$there" -lt "$gpus" ]; then
        fault "Slurm granted $there GPU(s), the job needs $gpus"
    fi
    if [ "$gpus" -gt 0 ] && command -v nvidia-smi >/dev/null; then
        there=$(timeout 60 nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ')
        [ "$there" -ge "$gpus" ] || fault "nvidia-smi sees $there GPU(s), the job needs $gpus"
    fi
    if [ "$nodes" -gt 1 ] && [ "$SLURM_NODEID" = 0 ]; then wait "$!" || faults=1; fi
    return "$faults"
}
