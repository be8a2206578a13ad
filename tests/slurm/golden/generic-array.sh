#!/bin/bash
# shellcheck disable=SC2034,SC2317 # functions and settings go to the nodes as text
# train on 1 x 2 ranks, written by rankup
# Made by:        rankup run --nodes 1 train.py --lr 0.1 'two words'
# To submit it:   mkdir -p /p/scratch/runs/train/20260101-120000-abcd/log && sbatch THIS_FILE
# It needs torchrun on PATH, and no rankup
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:2
#SBATCH --time=02:00:00
#SBATCH --signal=USR1@120
#SBATCH --chdir=/p/scratch/runs/train/20260101-120000-abcd
#SBATCH --output=/p/scratch/runs/train/20260101-120000-abcd/log/%A_%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --partition=gpu
#SBATCH --array=0-7%2

# ---- what this job runs --------------------------------------------------------------------------
export RANKUP_RUN_DIR=/p/scratch/runs/train/20260101-120000-abcd
RANKUP_RUN_DIR=$RANKUP_RUN_DIR/array/$SLURM_ARRAY_TASK_ID # one run per task
work_dir=/p/project
set -- /p/project/train.py --lr 0.1 'two words'
nodes=1 ranks=2 gpus=2 # ranks and GPUs are per node
suffix='' # of a node's name in the fast network
retries=0 # times that Slurm may start the job again after a node's failure
stop_after= # seconds; empty: shortly before the time limit
resume=0
needs=(/p/project /p/project/train.py)
programs=(torchrun python3)
srun_options=()
trap '' USR1 # the ranks take it as a wish to stop, this shell does not

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

# ---- environment ---------------------------------------------------------------------------------
cd -- "$work_dir" || finish 1 "$(hostname) cannot enter $work_dir; is it mounted there?"
# shellcheck disable=SC1090,SC1091 # the user's
source /p/project/activate.sh || finish 1 "activating the environment failed: "/p/project/activate.sh
export HF_HUB_OFFLINE=1
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1
export WANDB_MODE=offline
# srun does not take --cpus-per-task over from sbatch since Slurm 22.05
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-${SLURM_JOB_CPUS_PER_NODE%%[!0-9]*}}"
threads=$((SRUN_CPUS_PER_TASK / ranks)) # torchrun would set 1
export OMP_NUM_THREADS="$((threads > 0 ? threads : 1))"
export PYTHONUNBUFFERED=1
set -u

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

master_addr='' master_port='' # one node: nobody to meet

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

# rankup's own way to start a script, where it is there, keeps each rank's exception
# for `rankup logs`; the script is the same.
rank=(python)
if command -v rankup-rank >/dev/null; then rank=(rankup-rank); fi

launch() { # torchrun on the one node; it starts the ranks
    trap '' USR1 # it would die of it; the ranks install a handler of their own
    exec torchrun --standalone --nproc-per-node="$ranks" --max-restarts=0 --no-python -- \
        "${rank[@]}" "$@"
}

on_every_node() { # on_every_node SRUN_OPTION FUNCTION [WORD...]: a function of this script, per node
    local option=$1
    shift
    # What it uses goes along as text; $SLURM_NODEID and the like are then read on the node itself.
    srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --relative=0 --cpu-bind=none \
        --wait=60 "$option" "${srun_options[@]}" bash -c "$(
            declare -p nodes ranks gpus needs programs rank master_addr master_port
            declare -f preflight meet launch
        ); \"\$@\"" bash "$@"
}

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
