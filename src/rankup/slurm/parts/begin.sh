# The last task of an array has the number of the whole array as its own.
rankup_job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
rankup_job=${rankup_job:-$SLURM_JOB_ID}
rankup_start=$(date +%s)
rankup_marker=$RANKUP_RUN_DIR/requeue # left by the ranks when they stop with a checkpoint
rankup_records=$RANKUP_RUN_DIR/log/lives.jsonl
rankup_record="{\"job\": \"${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}\", \"task\": ${SLURM_ARRAY_TASK_ID:-null}"
# How often this job was started before, by its own count: psslurm sets no SLURM_RESTART_COUNT.
rankup_life=$(grep -c "^$rankup_record, \"restart\": [0-9]*, \"start\"" "$rankup_records" 2>/dev/null)
if [ "${rankup_life:-0}" -lt "${SLURM_RESTART_COUNT:-0}" ]; then rankup_life=$SLURM_RESTART_COUNT; fi
rankup_life=${rankup_life:-0}
if [ "$rankup_life" -gt 0 ]; then export SLURM_RESTART_COUNT=$rankup_life; fi # for rankup's own parts

record_life() { # append a line about this life, e.g. record_life '"end": 1700000000'
    if [ -n "${RANKUP_INTERACTIVE:-}" ]; then return; fi # in an allocation `rankup run` does it
    printf '%s, "restart": %d, %s}\n' "$rankup_record" "$rankup_life" "$1" >>"$rankup_records"
}

end_life() { # end_life CODE [WHY]: a script that ends without its code makes a failed job COMPLETED
    if [ -n "${2:-}" ]; then echo "rankup: $2" >&2; fi
    if [ -z "${rankup_ended:-}" ]; then record_life "\"end\": $(date +%s), \"code\": $1"; fi
    exit "$1"
}

count_up() { # count_up NAME: one more than the number in log/NAME; what is torn counts as too many
    local file=$RANKUP_RUN_DIR/log/$1 number=0
    if [ -e "$file" ]; then number=$(cat "$file"); fi
    case $number in '' | *[!0-9]* | ???????*) number=999999 ;; esac
    echo $((number + 1)) >"$file" && echo $((number + 1))
}

mkdir -p "$RANKUP_RUN_DIR/log" || exit 1
exec 9>>"$RANKUP_RUN_DIR/log/lock"
if command -v flock >/dev/null; then
    flock -w 90 9
    if [ $? = 1 ]; then # others mean: this file system has no locks
        end_life 1 "another job or process works in $RANKUP_RUN_DIR (held for 90 s)"
    fi
fi
rankup_who="job $SLURM_JOB_ID"
if [ -n "${RANKUP_INTERACTIVE:-}" ]; then
    rankup_who="process $RANKUP_INTERACTIVE on $(uname -n)"
fi
printf '%s' "$rankup_who" >"$RANKUP_RUN_DIR/log/lock"
rm -f -- "$RANKUP_RUN_DIR"/log/failure-rank*.json # of an earlier life
# The log may hold earlier lives: where this one begins in it. (Its size: psslurm gives a pipe.)
rankup_offset=$(stat --dereference --format=%s "$rankup_base/log/$rankup_job.out" 2>/dev/null || echo 0)
record_life "\"start\": $(date +%s.%3N), \"nodes\": \"$SLURM_JOB_NODELIST\", \"id\": \"$SLURM_JOB_ID\", \"offset\": $rankup_offset"

if [ -e "$rankup_base/log/cancelled" ]; then
    end_life 1 "cancelled by \`rankup cancel\`"
elif [ -e "$rankup_marker" ]; then
    rm -- "$rankup_marker"
    rankup_count=$(count_up requeues) || end_life 1 "cannot write to $RANKUP_RUN_DIR/log"
    if [ "$rankup_count" -ge "$rankup_lives" ]; then
        end_life 1 "stopped after $rankup_lives lives (--lives); go on with: rankup run --resume $rankup_base"
    fi
elif [ "$rankup_life" -gt 0 ] && [ -z "${RANKUP_INTERACTIVE:-}" ]; then # else: the allocation's
    rankup_count=$(count_up retries) || end_life 1 "cannot write to $RANKUP_RUN_DIR/log"
    if [ "$rankup_count" -gt "$rankup_retries" ]; then
        end_life 1 "Slurm started this job again (a node failed, or the job was preempted), and --retries allows $rankup_retries of that. Go on with: rankup run --resume $rankup_base"
    fi
fi
if [ -d "$RANKUP_RUN_DIR/checkpoints" ]; then RANKUP_RESUME=1; fi
export RANKUP_RESUME
