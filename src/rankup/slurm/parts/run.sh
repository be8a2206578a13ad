# ---- run -----------------------------------------------------------------------------------------
on_every_node --kill-on-bad-exit=0 preflight ||
    finish 1 "the preflight failed on the nodes named above; torch was not started anywhere"
on_every_node --kill-on-bad-exit=1 launch "$@"
code=$?
# A rank failed, and srun ended the others by a signal: the signal is not what happened.
if [ "$code" -gt 128 ] && compgen -G "$RANKUP_RUN_DIR/log/failure-rank*.json" >/dev/null; then
    code=1
fi

if [ -e "$requeue" ]; then # a checkpoint is there and the run is not through
    record "\"end\": $(date +%s), \"code\": 0, \"stopped\": true"
    exec 9>&- # the next life may start
    if [ -n "${RANKUP_INTERACTIVE:-}" ]; then exit 0; fi
    echo "rankup: stopped with a checkpoint before the time limit; going on in a next life" >&2
    if scontrol requeue "$SLURM_JOB_ID"; then
        sleep 120 # Slurm ends this shell
        exit 0
    fi
    me=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
    next=$(sbatch --parsable --dependency="afterany:${me:-$SLURM_JOB_ID}" \
        ${SLURM_ARRAY_TASK_ID:+--array="$SLURM_ARRAY_TASK_ID"} "$0") ||
        finish 1 "this site allows neither requeue nor sbatch in a job; go on with: rankup run --resume $RANKUP_RUN_DIR"
    echo "rankup: this site does not requeue; job $next follows" >&2
    printf '{"job": "%s", "task": %s, "follows": "%s"}\n' "${next%%;*}" \
        "${SLURM_ARRAY_TASK_ID:-null}" "$SLURM_JOB_ID" >>"$lives"
    exit 0
fi
if [ "$code" -ne 0 ] && command -v rankup >/dev/null; then
    rankup logs --cause "$RANKUP_RUN_DIR" # the last words: rank, node and exception
fi
finish "$code"
