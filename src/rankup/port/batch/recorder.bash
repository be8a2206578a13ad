# Read by bash before a batch file: what the file would start is recorded, asked about or followed.
# `__` begins every name, so that none is the file's. Only the walls around this process are to be
# relied on: a file may take all of this away.
__line=0 __raw='' __unset='' __deep=0 __text=0 __doubt=0 __unread=0 __asked='SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_ARRAY_TASK_ID' __moved=0 __in='' __step='' __read=''
__kept=(MASTER_ADDR MASTER_PORT RANK LOCAL_RANK WORLD_SIZE NODE_RANK GROUP_RANK CUDA_VISIBLE_DEVICES
    SLURM_PROCID SLURM_NODEID SLURM_LOCALID SLURM_NTASKS SRUN_CPUS_PER_TASK)

# Hand a record over; one process at a time.
__say() {
    local turn
    IFS= read -r -N 1 turn <&232
    printf '%s\0' "$#" "$@" >&230
    printf . >&233
}

# The same, and print the answer.
__ask() {
    local turn reply
    IFS= read -r -N 1 turn <&232
    printf '%s\0' "$#" "$@" >&230
    IFS= read -r -d '' reply <&231
    printf . >&233
    printf '%s' "$reply"
}

# Before each command of the file: where it stands, which of its variables nothing has set, and a
# function in the place of a program that is called by a path.
__debug() {
    # The functions of this file are the only ones of no file.
    if [[ ${BASH_SOURCE[1]-} == environment ]]; then
        ((__text)) || return 0
        case ${FUNCNAME[1]-} in
            __shell) ;;
            __* | command_not_found_handle | source | . | cd | pushd | popd | exec | trap | wait) return 0 ;;
            command | type | module | ml | conda | mamba | micromamba | spack | kill | ulimit) return 0 ;;
        esac
    fi
    case $1 in __* | builtin*) return 0 ;; esac
    PATH=/nonexistent
    set +eu
    ((__deep)) || __line=$2 __raw=$1 __unset=''
    local rest name
    # What goes by something unknown makes all that follows unknown.
    local test=0
    case $1 in case* | '[ '* | '[[ '* | '(('* | 'test '*) [[ $1 == *' -'[zn]' '* || $1 == *'$#'* ]] || test=1 ;; esac
    ((test)) && [[ $1 =~ \$\{?[1-9@*] && $3 == *"$__unknown"* ]] && __doubt=1
    rest=${1//\\\$/}
    [[ $rest == *\'*\'* ]] && rest=${rest%%\'*}${rest##*\'}
    while [[ $rest =~ \$\{?([A-Za-z_][A-Za-z0-9_]*)(.?) ]]; do
        rest=${rest#*"${BASH_REMATCH[0]}"} name=${BASH_REMATCH[1]}
        if [[ ${BASH_REMATCH[0]} == '${'* && ${BASH_REMATCH[2]} == [:+=?-] ]]; then continue; fi
        if [[ -v $name || -v ${name}[@] || $name == __* ]]; then
            ((test)) && [[ ${!name-} == *"$__unknown"* ]] && __doubt=1
            continue
        fi
        if [[ $name == SLURM_* && " $__asked " != *" $name "* ]]; then
            printf -v "$name" %s "$__unknown"
        elif ((__unread > 1)) || { ((__unread)) && [[ $name != *[a-z]* ]]; }; then
            printf -v "$name" %s "$__unknown"
        else
            __unset+="$name "
        fi
    done
    rest=$1
    while [[ $rest =~ ^[A-Za-z_][A-Za-z0-9_]*\+?=([^[:space:]\"\'\(\`]*|\"[^\"\`]*\")[[:space:]]+ ]]; do
        rest=${rest#"${BASH_REMATCH[0]}"}
    done
    rest=${rest%%[[:space:]]*}
    if [[ $rest =~ ^[\"A-Za-z0-9_./\$\{\}~+-]+$ ]]; then
        eval "rest=$rest" 2>/dev/null
        if [[ $rest == */* && $rest =~ ^[A-Za-z0-9_./+-]+$ ]] && ! declare -F "$rest" >/dev/null; then
            eval "function $rest { ( command_not_found_handle '$rest' \"\$@\" ); }"
        fi
    fi
    return 0
}

# A program is started: its words, with what it sees of the variables in question.
__started() {
    local name
    local -a seen=()
    for name in "${__kept[@]}"; do
        [[ -v $name && ${!name@a} == *x* ]] && seen+=("$name=${!name}")
    done
    __say start "$__line" "$__raw" "$__unset" "$__step" "$__in" "$__moved" "$__doubt" "${#seen[@]}" "${seen[@]}" "$@"
}

# What no command can start here comes here with its expanded words, in a process of its own.
command_not_found_handle() {
    builtin trap - DEBUG
    __text=0
    local base=${1##*/} text=''
    case $base in
        srun) __srun "${@:2}" ;;
        bash | sh | zsh | dash | ksh) __shell "$@" ;;
        nohup | setsid | unbuffer | time | sudo | catchsegv | strace | xvfb-run | ibrun | dumb-init | tini)
            shift
            while [[ ${1-} == -* ]]; do shift; done
            __follow "$@"
            ;;
        nice | ionice | stdbuf | numactl | taskset | timeout | env | chrt | watch)
            shift
            while [[ ${1-} == -* ]]; do
                case $base:$1 in
                    *:--?*=* | env:-i | env:- | timeout:--* | numactl:-[A-Za-z]?* | numactl:--* | taskset:* | *:-[A-Za-z]?*) [[ $base:$1 == taskset:-c ]] && shift ;;
                    env:-u) unset "${2-}" && shift ;;
                    *) shift ;;
                esac
                shift
            done
            [[ $base == timeout || $base == taskset ]] && shift
            while [[ $base == env && ${1-} =~ ^[A-Za-z_][A-Za-z0-9_]*= ]]; do export "$1" && shift; done
            __follow "$@"
            ;;
        apptainer | singularity | docker | podman | shifter | charliecloud | ch-run | enroot | uv | poetry | pipenv | pixi | hatch | rye | nsys | ncu | rocprof | rocprofv3 | vtune | scalene | py-spy | conda | mamba | micromamba)
            __in="$__in $base"
            local -a all=("$@")
            while shift; (($#)); do
                case ${1##*/} in
                    bash | sh | torchrun | torchrun_jsc | python | python[0-9]* | accelerate | deepspeed | srun | env | nohup)
                        __follow "$@"
                        return
                        ;;
                    *.py)
                        __follow python "$@"
                        return
                        ;;
                esac
            done
            __started "${all[@]}"
            printf '%s\n' "$__unknown"
            ;;
        head | tail | cut | tr | sed | awk | gawk | grep | egrep | sort | uniq | wc | cat | paste | rev | shuf | xargs | bc | tee)
            IFS= read -r -d '' text
            __ask ask "$__line" "${SLURM_NODEID-0}" "${SLURMD_NODENAME-n1}" "$text" "$@"
            ;;
        scontrol | hostname | nproc | nvidia-smi | date | nslookup | getent | host | dig | uuidgen | mktemp | seq | basename | dirname | realpath | readlink | whoami | expr | which | uname)
            __ask ask "$__line" "${SLURM_NODEID-0}" "${SLURMD_NODENAME-n1}" "" "$@"
            ;;
        sleep | mkdir | rm | cp | mv | ln | chmod | touch | test | rsync | tar | unzip) ;;
        *.sh | *.bash)
            local file=$1
            [[ -f $file ]] || file=$__beside/$1
            if [[ -f $file && -r $file && __deep -lt 8 ]]; then
                __deep=$((__deep + 1)) __in="$__in file"
                shift
                builtin trap '__debug "$BASH_COMMAND" "$LINENO" "$*"' DEBUG
                builtin source "$file" "$@"
            else
                __started "$@"
            fi
            ;;
        *)
            __started "$@"
            printf '%s\n' "$__unknown"
            ;;
    esac
    return 0
}

# A command that another one starts.
__follow() {
    (($#)) || return 0
    command_not_found_handle "$@"
}

# bash -c TEXT NAME WORD...; bash FILE WORD...
__shell() {
    local -a all=("$@")
    shift
    while [[ ${1-} == -* || ${1-} == +* ]]; do
        case $1 in
            --) shift && break ;;
            --*) ;;
            -*c*)
                local text=${2-}
                shift 2
                (($#)) && shift
                __deep=$((__deep + 1))
                ((__deep < 8)) || return 0
                __text=1
                builtin trap '__debug "$BASH_COMMAND" "$LINENO" "$*"' DEBUG
                eval "$text"
                return 0
                ;;
            -o | -O) shift ;;
        esac
        shift
    done
    if ((!$#)); then # what it reads, it executes
        [[ $__read ]] || IFS= read -r -d '' __read
        __deep=$((__deep + 1))
        ((__deep < 8)) || return 0
        __text=1
        builtin trap '__debug "$BASH_COMMAND" "$LINENO" "$*"' DEBUG
        eval "$__read"
        return 0
    fi
    local file=$1
    [[ -f $file ]] || file=$__beside/$1
    if [[ -f $file && -r $file ]] && ((__deep < 8)); then
        shift
        __deep=$((__deep + 1)) __in="$__in file"
        builtin trap '__debug "$BASH_COMMAND" "$LINENO" "$*"' DEBUG
        builtin source "$file" "$@"
        return 0
    fi
    __started "${all[@]}"
}

# srun: its options, then its command on the first tasks of the first two nodes and of the last.
__srun() {
    local name value nodes='' tasks='' each='' list='' first=0
    local -a options=()
    while (($#)); do
        value=''
        case $1 in
            --) shift && break ;;
            --*=*) name=${1%%=*} value=${1#*=} ;;
            --*)
                name=$1
                if [[ " $__flags " != *" ${1#--} "* ]]; then value=${2-} && shift; fi
                ;;
            -[A-Za-z]*)
                name=${1:0:2}
                if [[ $__letters != *${1:1:1}* ]]; then
                    value=${1:2}
                    [[ $value ]] || { value=${2-} && shift; }
                fi
                ;;
            *) break ;;
        esac
        (($#)) && shift
        name=${name//_/-}
        options+=("$name=$value")
        case $name in
            -N | --nodes) nodes=${value##*-} ;;
            -n | --ntasks) tasks=$value ;;
            --ntasks-per-node | --tasks-per-node) each=$value ;;
            -w | --nodelist) list=$value ;;
            -r | --relative) first=$value ;;
        esac
    done
    local known=1
    for value in "$nodes" "$tasks" "$each" "$first"; do [[ $value == '' || ($value =~ ^[0-9]+$ && $value -lt 100000) ]] || known=0; done
    if ((known)); then
        if [[ ! $nodes ]]; then
            nodes=$SLURM_NNODES
            if [[ $list && $list != *[\[,]* && $list != "$__unknown" ]]; then nodes=1; fi
        fi
        [[ $list =~ ^n([0-9]+)$ ]] && first=$((BASH_REMATCH[1] - 1))
        if [[ ! $tasks ]]; then
            if [[ $each ]]; then
                tasks=$((each * nodes))
            elif [[ ${SLURM_NTASKS-} && $nodes == "$SLURM_NNODES" ]]; then
                tasks=$SLURM_NTASKS
            else
                tasks=$((${SLURM_NTASKS_PER_NODE:-1} * nodes))
            fi
        fi
        ((tasks > 0)) || tasks=1
        ((nodes > tasks)) && nodes=$tasks
    else
        nodes=$__unknown tasks=$__unknown
    fi
    __step=$__line:$BASHPID
    __say srun "$__line" "$__step" "$nodes" "$tasks" "$first" "${options[@]}"
    case $*:${1##*/} in
        bash:* | sh:* | 'bash -s:'* | 'bash -l:'*) IFS= read -r -d '' __read ;; # all tasks read the same
    esac
    local shown=$nodes all=$tasks node at before=0 here
    ((known)) || shown=1 all=1
    for ((node = 0; node < shown; node++)); do
        here=$((all / shown + (node < all % shown)))
        for ((at = 0; at < here; at++)); do
            if ((node < 2 || node == shown - 1)) && ((at < 2 || at == here - 1)); then
                (
                    export SLURM_PROCID=$((before + at)) SLURM_NODEID=$node SLURM_LOCALID=$at
                    export SLURM_NTASKS=$tasks SLURM_NPROCS=$tasks SLURM_NNODES=$nodes SLURM_STEP_NUM_NODES=$nodes
                    export SLURM_JOB_NUM_NODES SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_ID=0 SLURM_STEPID=0
                    export SLURM_TASKS_PER_NODE=$here SLURM_STEP_TASKS_PER_NODE=$here
                    export SLURMD_NODENAME=n$((first + node + 1)) SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST
                    export SLURM_CPUS_ON_NODE SLURM_TASK_PID=$BASHPID
                    HOSTNAME=$SLURMD_NODENAME
                    __follow "$@"
                )
            fi
        done
        before=$((before + here))
    done
}

# What changes the shell itself cannot run in a process of its own.
__source() {
    case ${1-} in
        '' | */activate | activate | */conda.sh | */mamba.sh | */.bashrc | */.bash_profile | */.profile | /etc/* | /usr/* | /opt/*) ;;
        *)
            local file=$1
            [[ -f $file ]] || file=$__beside/$1
            if [[ -f $file && -r $file ]] && ((__deep < 8)); then
                __say source "$__line" "$1" there
                __deep=$((__deep + 1))
                builtin source "$file" "${@:2}"
                __deep=$((__deep - 1))
                return 0
            fi
            ;;
    esac
    __unread=2
    __say source "$__line" "${1-}" "$__moved"
    return 0
}
source() { __source "$@"; }
.() { __source "$@"; }
module() {
    ((__unread)) || __unread=1
    __say setup "$__line" module "$@"
}
ml() {
    ((__unread)) || __unread=1
    __say setup "$__line" ml "$@"
}
__environment() {
    if [[ ${2-} == run ]]; then
        (command_not_found_handle "$@")
    else
        ((__unread)) || __unread=1
        __say setup "$__line" "$@"
    fi
}
conda() { __environment conda "$@"; }
mamba() { __environment mamba "$@"; }
micromamba() { __environment micromamba "$@"; }
spack() { __environment spack "$@"; }
exec() {
    if (($#)); then
        [[ $1 == -a ]] && shift 2
        "$@"
        builtin exit 0
    fi
}
command() {
    case ${1-} in
        -v | -V) printf '%s\n' "${2-}" && return 0 ;;
        -p) shift ;;
    esac
    "$@"
}
type() { if [[ ${1-} == -t ]]; then builtin type "$@"; fi; }
cd() {
    __moved=1
    builtin cd "$@" 2>/dev/null
    return 0
}
pushd() { cd "$@"; }
popd() { :; }
trap() { [[ $__step ]] || __say trap "$__line" "$@"; }
wait() { __say wait "$__line"; }
kill() { [[ ${1-} != -0 ]]; }
ulimit() { :; }
shopt -s extdebug expand_aliases
set -T
