# ---- preflight: seconds, on every node, before torch is imported anywhere ------------------------
preflight() {
    trap '' USR1
    local node=${SLURMD_NODENAME:-$(hostname)} faults=0 path there
    fault() {
        echo "preflight: node $node: $1" >&2
        faults=1
    }
    for path in "${needs[@]}"; do
        [ -r "$path" ] || fault "cannot read $path; is its file system mounted on compute nodes?"
    done
    [ -w "$RANKUP_RUN_DIR" ] || fault "cannot write to the run directory $RANKUP_RUN_DIR"
    for path in "${programs[@]}"; do
        command -v "$path" >/dev/null || fault "$path is not on PATH; is the environment complete?"
    done
    there=${SLURM_GPUS_ON_NODE:-}
    if [ "$gpus" -gt 0 ] && [ -n "$there" ] && [ "$there" -lt "$gpus" ]; then
        fault "Slurm granted $there GPU(s), the job needs $gpus"
    fi
    if [ "$gpus" -gt 0 ] && command -v nvidia-smi >/dev/null; then
        there=$(timeout 30 nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ')
        [ "$there" -ge "$gpus" ] || fault "nvidia-smi sees $there GPU(s), the job needs $gpus"
    fi
    if [ "$nodes" -gt 1 ]; then meet || faults=1; fi
    return "$faults"
}
