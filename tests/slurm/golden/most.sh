#!/bin/bash
# shellcheck disable=SC2034,SC2317 # functions and settings go to the nodes as text
# my run on 2 x 2 ranks, written by rankup
# Made by:        rankup run --nodes 2 train.py --lr 0.1 'two words'
# To submit it:   mkdir -p /p/scratch/runs/train/20260101-120000-abcd/log && sbatch THIS_FILE
# It needs torchrun on PATH, and no rankup
# `rankup run` writes what --env gave into /p/scratch/runs/train/20260101-120000-abcd/env (NAME=VALUE, chmod 600).
#SBATCH --job-name="my run"
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:2
#SBATCH --time=02:00:00
#SBATCH --signal=USR1@60
#SBATCH --chdir=/p/scratch/runs/train/20260101-120000-abcd
#SBATCH --output=/p/scratch/runs/train/20260101-120000-abcd/log/%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --partition=gpu
#SBATCH --account=abc
#SBATCH --reservation=course
#SBATCH --dependency=afterok:17
#SBATCH --mail-user=me@example.org
#SBATCH --mail-type=BEGIN,END,FAIL,REQUEUE
#SBATCH --exclude=n7
#SBATCH --comment='a b'

# ---- this attempt of the run ---------------------------------------------------------------------
trap '' USR1 # the ranks take it as a wish to stop, this shell does not
unset RANKUP_PARENT # of a run that this job was submitted from: its process is not here
rankup_base=/p/scratch/runs/train/20260101-120000-abcd
export RANKUP_RUN_DIR=$rankup_base
rankup_max_attempts=100 # at most, and then somebody should look
rankup_retries=2 # times that Slurm may start the job again by itself
RANKUP_RESUME=0 # whether there was an attempt before this job

rankup_start=$(date +%s)
rankup_marker=$RANKUP_RUN_DIR/requeue # left by the ranks when they stop with a checkpoint
rankup_records=$RANKUP_RUN_DIR/attempts.jsonl
rankup_record="{\"job\": \"$SLURM_JOB_ID\""
# How often this job was started before, by its own count: psslurm sets no SLURM_RESTART_COUNT.
rankup_attempt=$(grep -c "^$rankup_record, \"restart\": [0-9]*, \"start\"" "$rankup_records" 2>/dev/null)
if [ "${rankup_attempt:-0}" -lt "${SLURM_RESTART_COUNT:-0}" ]; then rankup_attempt=$SLURM_RESTART_COUNT; fi
rankup_attempt=${rankup_attempt:-0}
if [ "$rankup_attempt" -gt 0 ]; then export SLURM_RESTART_COUNT=$rankup_attempt; fi # for rankup's own parts

record_attempt() { # append a line about this attempt, e.g. record_attempt '"end": 1700000000'
    if [ -n "${RANKUP_INTERACTIVE:-}" ]; then return; fi # in an allocation `rankup run` does it
    printf '%s, "restart": %d, %s}\n' "$rankup_record" "$rankup_attempt" "$1" >>"$rankup_records"
}

end_attempt() { # end_attempt CODE [WHY]: a script that ends without its code makes a failed job COMPLETED
    if [ -n "${2:-}" ]; then echo "rankup: $2" >&2; fi
    if [ -z "${rankup_ended:-}" ]; then record_attempt "\"end\": $(date +%s.%3N), \"code\": $1"; fi
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
        end_attempt 1 "another job or process works in $RANKUP_RUN_DIR (held for 90 s)"
    fi
fi
rankup_who="job $SLURM_JOB_ID"
if [ -n "${RANKUP_INTERACTIVE:-}" ]; then
    rankup_who="process $RANKUP_INTERACTIVE on $(uname -n)"
fi
printf '%s' "$rankup_who" >"$RANKUP_RUN_DIR/log/lock"
rm -f -- "$RANKUP_RUN_DIR"/log/failure-*.json # of an earlier attempt
# The log may hold earlier attempts: where this one begins in it. (Its size: psslurm gives a pipe.)
rankup_offset=$(stat --dereference --format=%s "$rankup_base/log/$SLURM_JOB_ID.out" 2>/dev/null || echo 0)
record_attempt "\"start\": $(date +%s.%3N), \"nodes\": \"$SLURM_JOB_NODELIST\", \"id\": \"$SLURM_JOB_ID\", \"offset\": $rankup_offset"

if [ -e "$rankup_base/log/cancelled" ]; then
    record_attempt "\"end\": $(date +%s.%3N), \"code\": 1, \"cancelled\": true"
    rankup_ended=1
    end_attempt 1 "cancelled by \`rankup cancel\`"
elif [ -e "$rankup_marker" ]; then
    rm -- "$rankup_marker"
    rankup_count=$(count_up requeues) || end_attempt 1 "cannot write to $RANKUP_RUN_DIR/log"
    if [ "$rankup_count" -ge "$rankup_max_attempts" ]; then
        end_attempt 1 "stopped after $rankup_max_attempts attempts (--max-attempts); go on with: rankup run --resume $rankup_base"
    fi
elif [ "$rankup_attempt" -gt 0 ] && [ -z "${RANKUP_INTERACTIVE:-}" ]; then # else: the allocation's
    rankup_count=$(count_up retries) || end_attempt 1 "cannot write to $RANKUP_RUN_DIR/log"
    if [ "$rankup_count" -gt "$rankup_retries" ]; then
        end_attempt 1 "Slurm started this job again (a node failed, or the job was preempted), and --retries allows $rankup_retries of that. Go on with: rankup run --resume $rankup_base"
    fi
fi
if [ -d "$RANKUP_RUN_DIR/checkpoints" ]; then RANKUP_RESUME=1; fi
export RANKUP_RESUME

# ---- environment ---------------------------------------------------------------------------------
cd -- /p/project || end_attempt 1 "$(hostname) cannot enter it; is it mounted? "/p/project
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}"
export HF_DATASETS_OFFLINE="${HF_DATASETS_OFFLINE:-1}"
export TRANSFORMERS_OFFLINE="${TRANSFORMERS_OFFLINE:-1}"
export WANDB_MODE="${WANDB_MODE:-offline}"
export PYTHONUNBUFFERED=1
activate() { # in a function: what it sources sees no words of this script
    # shellcheck disable=SC1090,SC1091
    source /p/project/activate.sh
}
[ -r /p/project/activate.sh ] || end_attempt 1 "cannot read "/p/project/activate.sh
trap 'end_attempt 1 "the environment file calls exit, which ends the job"' EXIT
activate || echo "rankup: warning: exit code $? from "/p/project/activate.sh >&2
trap - EXIT
set +e
cd -- /p/project || exit 1 # wherever that went
# As they stand in the batch file that this job is like.
trap 'end_attempt 1 "a set-up line calls exit, which ends the job"' EXIT
module load CUDA
export DATA='my data'
trap - EXIT
set +eu
cd -- /p/project || exit 1 # wherever that went
private=$rankup_base/env # from --env; a file of yours that nobody else can read
if [ ! -O "$private" ]; then end_attempt 1 "$private is missing, or not your file"; fi
set -a
# shellcheck disable=SC1090
source "$private"
set +a

# ---- what this job runs --------------------------------------------------------------------------
words=(/p/project/train.py --lr 0.1 'two words')
nodes=2 ranks=2 gpus=2 # ranks and GPUs are per node
minutes=120 # time limit
stop_after=1800 # seconds; empty: shortly before the time limit
suffix='' # of a node's name in the fast network
srun_options=()
needs=(/p/project /p/project/train.py) # every node has to see these
programs=(torchrun python3)
stage=('/p/data/my photos.h5' /p/data/tokens) # each node copies these first
stage_options=(--reserve 40GB --broadcast)
mounts=(/p/data/photos.sqsh) # each node mounts these first
export RANKUP_STAGE_DIR=/local/nvme # on each node
# srun does not take --cpus-per-task over from sbatch since Slurm 22.05
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-${SLURM_JOB_CPUS_PER_NODE%%[!0-9]*}}"
export PYTHONHASHSEED="${PYTHONHASHSEED:-0}" # ranks have one order of a set
if [ -z "${PYTORCH_ALLOC_CONF+set}${PYTORCH_CUDA_ALLOC_CONF+set}" ]; then
    export PYTORCH_ALLOC_CONF=expandable_segments:True # freed GPU memory serves for any size
fi
threads=$((SRUN_CPUS_PER_TASK / ranks)) # torchrun would set 1
export OMP_NUM_THREADS="$((threads > 0 ? threads : 1))"
set -u

# ---- until when: the ranks save and stop before this ---------------------------------------------
rankup_end=${SLURM_JOB_END_TIME:-}
if [ -z "$rankup_end" ]; then # Slurm before 23.02 does not say
    ends=$(SLURM_TIME_FORMAT=standard squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e)
    rankup_end=$(date --date="${ends:-unknown}" +%s 2>/dev/null) || rankup_end=
fi
if [ -z "$rankup_end" ] && [ "$minutes" -gt 0 ]; then
    rankup_end=$((rankup_start + minutes * 60)) # squeue did not answer
fi
# The ranks' end is earlier: torchrun and srun end after them, and this shell asks for a next attempt.
RANKUP_END_TIME=${rankup_end:+$((rankup_end - 10))}
if [ -n "$stop_after" ]; then # --deadline
    early=$((rankup_start + stop_after))
    if [ "$early" -lt "${RANKUP_END_TIME:-$((early + 1))}" ]; then RANKUP_END_TIME=$early; fi
fi
if [ -n "$RANKUP_END_TIME" ]; then export RANKUP_END_TIME; else unset RANKUP_END_TIME; fi

# ---- the address all nodes meet at ---------------------------------------------------------------
resolve() { # IPv4 of a name; the own name often resolves to loopback, which no other node can reach
    getent ahostsv4 "$1" | awk '$1 !~ /^127\./ { print $1; exit }'
}

head_address() {
    local address node_addr
    if [ -n "$suffix" ]; then
        address=$(resolve "$1$suffix")
        if [ -n "$address" ]; then echo "$address" && return; fi
        echo "rankup: note: $1$suffix does not resolve; trying $1" >&2
    fi
    address=$(resolve "$1")
    if [ -n "$address" ]; then echo "$address" && return; fi
    node_addr=$(scontrol show node --oneliner "$1" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
    case $node_addr in
    *[!0-9.]*) resolve "$node_addr" ;; # a name
    *) echo "$node_addr" ;;            # an address: Slurm's word is taken as it is
    esac
}

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
master_addr=$(head_address "$head")
if [ -z "$master_addr" ]; then
    end_attempt 1 "no address for $head: neither the resolver nor Slurm's NodeAddr has one that other nodes could reach"
fi
master_port=$((10000 + SLURM_JOB_ID % 20000)) # of this job alone
for _ in 1 2 3 4 5 6 7 8 9; do                # unless somebody sits there
    timeout 2 bash -c "</dev/tcp/$master_addr/$master_port" 2>/dev/null || break
    master_port=$((master_port + 1))
done

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

report_to_head() { # say the own name at the first node's port
    # shellcheck disable=SC2016 # bash below fills it in
    local _ say='printf "%s\n" "$1" >"/dev/tcp/$2/$3"'
    for _ in {1..120}; do # at a port that a firewall drops a connect alone takes minutes
        if timeout 5 bash -c "$say" bash "$node" "$master_addr" "$master_port"; then return; fi
        if [ "$SECONDS" -gt $((60 + nodes / 10)) ]; then break; fi
        sleep 0.5
    done 2>/dev/null
    fault "cannot reach port $master_port of the first node at $master_addr"
    return 1
}

hear_all() { # on the first node: who does not say its name in time (90 s, of 1000 nodes 190 s)
    local names
    mapfile -t names < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
    python3 -c '
import socket, sys, time
address, port, me, *names = sys.argv[1:]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    server.bind((address, int(port)))
except OSError as error:
    sys.exit(f"preflight: node {me}: cannot listen at {address}:{port}: {error.strerror}")
server.listen(len(names))
missing, end = set(names) - {me}, time.monotonic() + 90 + len(names) / 10
while missing:
    try:
        server.settimeout(max(0.01, end - time.monotonic()))
        caller, _ = server.accept()
        caller.settimeout(5)
        missing.discard(caller.recv(300).decode(errors="replace").strip())
    except OSError:
        if time.monotonic() >= end:
            silent = " ".join(sorted(missing))
            sys.exit(f"preflight: {me} at {address}:{port} has not heard from: {silent}")
' "$master_addr" "$master_port" "$node" "${names[@]}"
}

# rankup's own way to start a script, where it is there, keeps each rank's exception
# for `rankup logs`; the script is the same.
rank=(python3)
if command -v rankup-rank >/dev/null; then rank=(rankup-rank); fi
torchrun=(torchrun)
# And to start torchrun, the signal that killed a rank. (An environment may have an older rankup.)
case $(rankup-rank 2>&1) in *--agent*) torchrun=(rankup-rank --agent) ;; esac

launch() { # torchrun on this node; it starts the ranks
    watch_node
    trap '' USR1 # it would die of it; the ranks install a handler of their own
    exec "${torchrun[@]}" --nnodes="$nodes" --nproc-per-node="$ranks" --max-restarts=0 \
        --node-rank="$SLURM_NODEID" --master-addr="$master_addr" --master-port="$master_port" \
        --no-python -- "${rank[@]}" "$@"
}

watch_node() { # the sampler of this node, beside its ranks; it ends with them
    local launcher=$BASHPID # becomes torchrun
    if command -v rankup >/dev/null; then
        (trap '' USR1 && exec rankup monitor "$RANKUP_RUN_DIR" --parent "$launcher" \
            --ranks "$ranks" --whole-node) </dev/null &
    else
        echo "rankup: note: node ${SLURMD_NODENAME:-$(hostname)} is not sampled: no rankup on PATH" >&2
    fi
}

# ---- data into each node: the ranks find the copies by themselves --------------------------------
# The folder of this attempt's copies: not every Slurm sets SLURM_RESTART_COUNT. Of the runs in one
# allocation each has its own.
RANKUP_STAGE_JOB=job-$SLURM_JOB_ID.${RANKUP_INTERACTIVE:+run-}${RANKUP_INTERACTIVE:-$rankup_start}
export RANKUP_STAGE_JOB

stage_node() { # before torch is started anywhere; what does not fit is refused here
    trap '' USR1
    trap 'sleep 0.3; release_node; exit 143' TERM # scancel, the time limit: Slurm tells rankup, too
    local node=${SLURMD_NODENAME:-$(hostname)} code
    (
        set -o pipefail
        export LOCAL_WORLD_SIZE=$ranks # for which it keeps memory
        rankup stage ${stage_options[@]+"${stage_options[@]}"} -- "${stage[@]}" 2>&1 | {
            trap '' TERM # what is said at the end is to be heard
            sed --unbuffered "s/^/stage: node $node: /" >&2
        }
    ) &
    wait "$!"
    code=$?
    if [ "$code" -ne 0 ]; then release_node; fi
    return "$code"
}

launch_staged() { # a later step could not give the memory back: a job that ends starts no step
    trap '' USR1
    trap 'ended=1; release_node' TERM # scancel, the time limit; the ranks have open what they read
    local child code ended=1
    if [ "${#mounts[@]}" -gt 0 ]; then # by a process of this step, which ends with it
        if ! RANKUP_MOUNTS=$(rankup stage --mount -- "${mounts[@]}"); then
            echo "rankup: node ${SLURMD_NODENAME:-$(hostname)} cannot mount ${mounts[*]}" >&2
            return 1
        fi
        RANKUP_MOUNTS=${RANKUP_MOUNTS//$'\n'/:}
        export RANKUP_MOUNTS # the folders, in the order of --mount
    fi
    launch "$@" <&0 &
    child=$!
    while [ -n "$ended" ]; do # the trap ends a wait, but not torchrun
        ended=
        wait "$child"
        code=$?
    done
    release_node
    return "$code"
}

release_node() { # with what a kill has left of a copy
    timeout 25 rankup stage --release >&2
}

on_every_node() { # on_every_node SRUN_OPTION FUNCTION [WORD...]: a function of this script, per node
    local option=$1
    shift
    # --wait=0: what rank 0 does after the others have ended, an export, may take long.
    # What it uses goes along as text; $SLURM_NODEID and the like are then read on the node itself.
    srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --relative=0 --cpu-bind=none \
        --wait=0 "$option" ${srun_options[@]+"${srun_options[@]}"} bash -c "$(
            declare -p stage stage_options mounts
            declare -p nodes ranks gpus needs programs rank master_addr master_port torchrun
            declare -f preflight hear_all report_to_head launch watch_node
            declare -f stage_node launch_staged release_node
        ); \"\$@\"" bash "$@"
}

# ---- run -----------------------------------------------------------------------------------------
SLURM_KILL_BAD_EXIT=0 on_every_node --wait=120 preflight ||
    end_attempt 1 "the preflight failed, on the nodes or with the words of srun above; torch was not started anywhere"
launcher=launch
if ! command -v rankup >/dev/null; then
    echo "rankup: note: this job has no rankup on PATH, so nothing is staged or mounted:" \
        "${stage[*]} ${mounts[*]}" >&2
else
    launcher=launch_staged
    if [ "${#stage[@]}" -gt 0 ]; then
        on_every_node --kill-on-bad-exit=1 stage_node || {
            on_every_node --time=2 release_node # of nodes that had it already
            end_attempt 1 "staging failed on the node named above; torch was not started anywhere"
        }
    fi
fi
on_every_node --kill-on-bad-exit=1 "$launcher" "${words[@]}"
code=$?
# Where ranks failed, srun may have killed those who would have done it.
if [ "$code" -ne 0 ] && [ "$launcher" != launch ]; then
    on_every_node --time=2 release_node
fi
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
        end_attempt 1 "three attempts in a row stopped in the first tenth of their time: too little is left beside a checkpoint, or the nodes' clocks differ. Go on with: rankup run --resume $rankup_base"
    fi
    record_attempt "\"end\": $(date +%s.%3N), \"code\": 0, \"stopped\": true"
    exec 9>&- # the next attempt may start
    echo "rankup: stopped with a checkpoint before the time limit; going on in a next attempt" >&2
    for pause in 5 15 30 60 120 240; do # while the controller is away
        if scontrol requeue "$SLURM_JOB_ID"; then
            sleep 120 # Slurm ends this shell
            exit 0
        fi
        if next=$(env --unset=SLURM_RESTART_COUNT sbatch --parsable \
            --dependency="afterany:$SLURM_JOB_ID" "$0"); then
            echo "rankup: note: this site does not requeue; job $next follows" >&2
            printf '{"job": "%s", "follows": "%s"}\n' "${next%%;*}" "$SLURM_JOB_ID" >>"$rankup_records"
            exit 0
        fi
        refusal="this site allows neither requeue nor sbatch in a job"
        if scontrol ping | grep -q ' UP$'; then break; fi
        refusal="Slurm's controller does not answer"
        if [ $(($(date +%s) + pause)) -ge "${rankup_end:-9999999999}" ]; then break; fi
        echo "rankup: note: $refusal; the requeue is tried again in $pause s" >&2
        sleep "$pause"
    done
    end_attempt 1 "$refusal; go on with: rankup run --resume $rankup_base"
fi
if [ -d "$RANKUP_RUN_DIR/monitor" ] && command -v rankup >/dev/null; then # what it was worth
    record_attempt "\"end\": $(date +%s.%3N), \"code\": $code" # the time limit may come meanwhile
    rankup_ended=1
    left=$((${rankup_end:-$(($(date +%s) + 3600))} - $(date +%s) - 20))
    if [ "$left" -ge 20 ]; then # all nodes are billed as long as this takes: the lines, no page
        timeout --kill-after=5 20 \
            rankup report --formats text --ended "$code" "$RANKUP_RUN_DIR"
    else
        echo "rankup: note: no time is left for the report; it is made by: rankup report $rankup_base" >&2
    fi
fi
if [ "$code" -ne 0 ] && command -v rankup >/dev/null; then
    timeout 60 rankup logs --cause "$RANKUP_RUN_DIR" # the last words: rank, node and exception
fi
end_attempt "$code"
