if [ -d "$RANKUP_RUN_DIR/monitor" ] && command -v rankup >/dev/null; then # what it was worth
    record_life "\"end\": $(date +%s), \"code\": $code" # the time limit may come meanwhile
    rankup_ended=1
    left=$((${RANKUP_END_TIME:-$(($(date +%s) + 3600))} - $(date +%s) - 20))
    if [ "$left" -ge 20 ]; then # all nodes are billed as long as this takes: the lines, no page
        timeout --kill-after=5 20 \
            rankup report --formats text --ended "$code" "$RANKUP_RUN_DIR"
    else
        echo "rankup: no time is left for the report; it is made by: rankup report $rankup_base" >&2
    fi
fi
