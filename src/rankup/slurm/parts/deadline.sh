# ---- until when: the ranks save and stop before this ---------------------------------------------
RANKUP_END_TIME=${SLURM_JOB_END_TIME:-}
if [ -z "$RANKUP_END_TIME" ]; then # Slurm before 23.02 does not say
    ends=$(SLURM_TIME_FORMAT=standard squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e)
    RANKUP_END_TIME=$(date --date="${ends:-unknown}" +%s 2>/dev/null) || RANKUP_END_TIME=
fi
if [ -n "$stop_after" ]; then # --deadline
    early=$(($(date +%s) + stop_after))
    if [ -z "$RANKUP_END_TIME" ] || [ "$early" -lt "$RANKUP_END_TIME" ]; then RANKUP_END_TIME=$early; fi
fi
if [ -z "$RANKUP_END_TIME" ]; then
    finish 1 "Slurm does not say when job $SLURM_JOB_ID ends; give it a limit with --time"
fi
export RANKUP_END_TIME
