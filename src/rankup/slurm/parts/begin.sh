# ---- this life of the run ----------------------------------------------------------------------
life=${SLURM_RESTART_COUNT:-0}
lives=$RANKUP_RUN_DIR/log/lives.jsonl
requeue=$RANKUP_RUN_DIR/requeue # left by the ranks when they stop with a checkpoint before the limit

record() { # append one line about this life, e.g. record '"end": 1700000000'
    if [ -n "${RANKUP_INTERACTIVE:-}" ]; then return; fi # in an allocation `rankup run` does it
    printf '{"job": "%s", "task": %s, "restart": %d, %s}\n' "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}" \
        "${SLURM_ARRAY_TASK_ID:-null}" "$life" "$1" >>"$lives"
}

finish() { # finish CODE [WHY]: a script that ends without its code makes a failed job COMPLETED
    if [ -n "${2:-}" ]; then echo "rankup: $2" >&2; fi
    record "\"end\": $(date +%s), \"code\": $1"
    exit "$1"
}

mkdir -p "$RANKUP_RUN_DIR/log" || exit 1
exec 9>>"$RANKUP_RUN_DIR/log/lock"
if command -v flock >/dev/null; then
    flock -w 90 9 || finish 1 "another job or process works in $RANKUP_RUN_DIR (held for 90 s)"
fi
who="job $SLURM_JOB_ID"
if [ -n "${RANKUP_INTERACTIVE:-}" ]; then who="process $RANKUP_INTERACTIVE on $(uname -n)"; fi
printf '%s' "$who" >"$RANKUP_RUN_DIR/log/lock"
rm -f -- "$RANKUP_RUN_DIR"/log/failure-rank*.json # of an earlier life
log=$(stat --dereference --format=%s "/proc/$$/fd/1" 2>/dev/null || echo 0) # it may hold earlier lives
record "\"start\": $(date +%s.%3N), \"nodes\": \"$SLURM_JOB_NODELIST\", \"id\": \"$SLURM_JOB_ID\", \"offset\": $log"

if [ -e "$requeue" ]; then
    rm -- "$requeue"
elif [ "$life" -gt 0 ]; then # Slurm started this job again by itself: a node failed
    retried=$(cat "$RANKUP_RUN_DIR/log/retries" 2>/dev/null || echo 0)
    if [ "$retried" -ge "$retries" ]; then
        finish 1 "Slurm started this job again after a failure of a node, and --retries allows $retries of that; stopped. Go on with: rankup run --resume $RANKUP_RUN_DIR"
    fi
    echo $((retried + 1)) >"$RANKUP_RUN_DIR/log/retries"
fi
RANKUP_RESUME=$resume
if [ -d "$RANKUP_RUN_DIR/checkpoints" ]; then RANKUP_RESUME=1; fi
export RANKUP_RESUME
