# ---- until when: the ranks save and stop before this ---------------------------------------------
RANKUP_END_TIME=${SLURM_JOB_END_TIME:-}
if [ -z "$RANKUP_END_TIME" ]; then # Slurm before 23.02 does not say
    ends=$(SLURM_TIME_FORMAT=standard squeue --noheader --jobs="$rankup_job" --format=%e)
    RANKUP_END_TIME=$(date --date="${ends:-unknown}" +%s 2>/dev/null) || RANKUP_END_TIME=
fi
if [ -z "$RANKUP_END_TIME" ] && [ "$minutes" -gt 0 ]; then
    RANKUP_END_TIME=$((rankup_start + minutes * 60)) # squeue did not answer
fi
if [ -n "$stop_after" ]; then # --deadline
    early=$((rankup_start + stop_after))
    if [ "$early" -lt "${RANKUP_END_TIME:-$((early + 1))}" ]; then RANKUP_END_TIME=$early; fi
fi
if [ -n "$RANKUP_END_TIME" ]; then export RANKUP_END_TIME; else unset RANKUP_END_TIME; fi
