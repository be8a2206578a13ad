# ---- run -----------------------------------------------------------------------------------------
SLURM_KILL_BAD_EXIT=0 on_every_node --wait=120 preflight ||
    end_life 1 "the preflight failed, on the nodes or with the words of srun above; torch was not started anywhere"
on_every_node --kill-on-bad-exit=1 launch "${words[@]}"
code=$?
# A rank failed, and srun ended the others by a signal: the signal is not what happened.
if [ "$code" -gt 128 ] && compgen -G "$RANKUP_RUN_DIR/log/failure-rank*.json" >/dev/null; then
    code=1
fi

if [ -e "$rankup_marker" ] && [ -n "${RANKUP_INTERACTIVE:-}" ]; then exit 0; fi
if [ -e "$rankup_marker" ]; then # a checkpoint is there and the run is not through
    took=$(($(date +%s) - rankup_start))
    if [ $((took * 10)) -ge $((${RANKUP_END_TIME:-0} - rankup_start)) ]; then
        rm -f -- "$RANKUP_RUN_DIR/log/short"
    elif [ "$(count_up short || echo 9)" -ge 3 ]; then
        end_life 1 "three lives in a row stopped in the first tenth of their time: too little is left beside a checkpoint, or the nodes' clocks differ. Go on with: rankup run --resume $rankup_base"
    fi
    record_life "\"end\": $(date +%s), \"code\": 0, \"stopped\": true"
    exec 9>&- # the next life may start
    echo "rankup: stopped with a checkpoint before the time limit; going on in a next life" >&2
    for pause in 5 15 30 60 120 240; do # while the controller is away
        if scontrol requeue "$rankup_job"; then
            sleep 120 # Slurm ends this shell
            exit 0
        fi
        if next=$(env --unset=SLURM_RESTART_COUNT sbatch --parsable \
            --dependency="afterany:$rankup_job" \
            ${SLURM_ARRAY_TASK_ID:+--array="$SLURM_ARRAY_TASK_ID"} "$0"); then
            echo "rankup: this site does not requeue; job $next follows" >&2
            printf '{"job": "%s", "task": %s, "follows": "%s"}\n' "${next%%;*}" \
                "${SLURM_ARRAY_TASK_ID:-null}" "$rankup_job" >>"$rankup_records"
            exit 0
        fi
        refusal="this site allows neither requeue nor sbatch in a job"
        if scontrol ping | grep -q ' UP$'; then break; fi
        refusal="Slurm's controller does not answer"
        if [ $(($(date +%s) + pause)) -ge "${RANKUP_END_TIME:-9999999999}" ]; then break; fi
        echo "rankup: $refusal; the requeue is tried again in $pause s" >&2
        sleep "$pause"
    done
    end_life 1 "$refusal; go on with: rankup run --resume $rankup_base"
fi
if [ "$code" -ne 0 ] && command -v rankup >/dev/null; then
    timeout 60 rankup logs --cause "$RANKUP_RUN_DIR" # the last words: rank, node and exception
fi
end_life "$code"
