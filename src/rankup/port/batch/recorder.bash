#!/bin/bash
# Read by bash before a batch file: what the file would start is recorded, asked about or followed.
# `__` begins every name, so that none is the file's. Only the walls around this process are to be
# relied on: a file may take all of this away. From outside come __beside, the folder of the file;
# __unknown, what stands for a value that is not known; __fail, the line whose program is to fail,
# 0 for none; __flags and __letters, the options of srun that take no value.
# shellcheck disable=SC2154

__line=0 __raw='' __unset='' __deep=0 __text=0 __doubt=0 __unread=0 __moved=0 __in='' __step=''
__read='' __pids=" $$ " __behind='' __reply=''
# Slurm sets these where something is asked for; where they are not set, nothing sets them.
__asked=' SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_NODE'
__asked+=' SLURM_CPUS_PER_TASK SLURM_ARRAY_TASK_ID '
__kept=(MASTER_ADDR MASTER_PORT RANK LOCAL_RANK WORLD_SIZE NODE_RANK GROUP_RANK CUDA_VISIBLE_DEVICES
    SLURM_PROCID SLURM_NODEID SLURM_LOCALID SLURM_NTASKS SRUN_CPUS_PER_TASK)

# Hand a record over, one process at a time; the answer is in __reply.
__say() {
    # shellcheck disable=SC2034 # what is read is a token, and holding it is all
    local __token
    IFS= read -r -N 1 __token <&232
    printf '%s\0' "$#" "$@" >&230
    IFS= read -r -d '' __reply <&231
    printf . >&233
}

# Before each command of the file: where it stands, which of its variables nothing has set, and a
# function in the place of a program that is called by a path.
__debug() {
    # The functions of this file are the only ones of no file.
    if [[ ${BASH_SOURCE[1]-} == environment ]]; then
        ((__text)) || return 0
        case ${FUNCNAME[1]-} in
            __evaluate) ;;
            __* | command_not_found_handle | source | . | cd | pushd | popd | exec | trap | wait) return 0 ;;
            command | type | module | ml | conda | mamba | micromamba | spack | kill | ulimit) return 0 ;;
        esac
    fi
    case $1 in __* | builtin*) return 0 ;; esac
    # shellcheck disable=SC2123 # no program is to be found
    PATH=/nonexistent
    set +u
    ((__fail)) || set +e
    [[ $__pids == *" $BASHPID "* ]] || __pids+="$BASHPID "
    if [[ ${!-} != "$__behind" ]]; then __behind=$! && __say background 0 "$!"; fi
    if ((__fail && $$ == BASHPID && __line && !__deep)); then __say later "$2"; fi
    ((__deep)) || __line=$2 __raw=$1 __unset=''
    __variables "$1" "$3"
    local rest=$1
    while [[ $rest =~ ^[A-Za-z_][A-Za-z0-9_]*\+?=([^[:space:]\"\'\(\`]*|\"[^\"\`]*\")[[:space:]]+ ]]; do
        rest=${rest#"${BASH_REMATCH[0]}"}
    done
    rest=${rest%%[[:space:]]*}
    if [[ $rest =~ ^[\"A-Za-z0-9_./\$\{\}~+-]+$ ]]; then
        eval "rest=$rest" 2>/dev/null || :
        if [[ $rest == */* && $rest =~ ^[A-Za-z0-9_./+-]+$ ]] && ! declare -F "$rest" >/dev/null; then
            eval "function $rest { __pids+=\"\$BASHPID \"; ( command_not_found_handle '$rest' \"\$@\" ); }"
        fi
    fi
    return 0
}

# The variables of a command: what Slurm or a file that is not here would set is unknown, and what
# goes by something unknown makes all that follows unknown.
__variables() {
    local rest name test=0
    case $1 in case* | '[ '* | '[[ '* | '(('* | 'test '*) [[ $1 == *' -'[zn]' '* || $1 == *'$#'* ]] || test=1 ;; esac
    ((test)) && [[ $1 =~ \$\{?[1-9@*] && $2 == *"$__unknown"* ]] && __doubt=1
    rest=${1//\\\$/}
    [[ $rest == *\'*\'* ]] && rest=${rest%%\'*}${rest##*\'}
    while [[ $rest =~ \$\{?([A-Za-z_][A-Za-z0-9_]*)(.?) ]]; do
        rest=${rest#*"${BASH_REMATCH[0]}"} name=${BASH_REMATCH[1]}
        # shellcheck disable=SC2016 # the letters are meant
        if [[ ${BASH_REMATCH[0]} == '${'* && ${BASH_REMATCH[2]} == [:+=?-] ]]; then continue; fi
        if [[ -v $name || -v ${name}[@] || $name == __* ]]; then
            ((test)) && [[ ${!name-} == *"$__unknown"* ]] && __doubt=1
            continue
        fi
        if [[ $name == SLURM_* && $__asked != *" $name "* ]]; then
            printf -v "$name" %s "$__unknown"
        elif ((__unread > 1)) || { ((__unread)) && [[ $name != *[a-z]* ]]; }; then
            printf -v "$name" %s "$__unknown"
        else
            __unset+="$name "
        fi
    done
    return 0
}

# A command of the file failed, and nothing asked whether it would.
__failed() {
    if ((__line == __fail && $$ == BASHPID)); then __say failed "$__line"; fi
}

# A program is started: its words, with what it sees of the variables in question. What it prints
# is not known; it fails where it is to fail.
__started() {
    local name piped=0
    local -a seen=()
    for name in "${__kept[@]}"; do
        [[ -v $name && ${!name@a} == *x* ]] && seen+=("$name=${!name}")
    done
    [[ -p /dev/fd/1 ]] && piped=1
    __say start "$__line" "$__raw" "$__unset" "$__step" "$__in" "$__moved" "$__doubt" "$__pids" \
        "$piped" "${#seen[@]}" "${seen[@]}" "$@"
    printf '%s\n' "$__unknown"
    return "${__reply:-0}"
}

# What no command can start here comes here with its expanded words, in a process of its own.
command_not_found_handle() {
    builtin trap - DEBUG ERR
    set +e
    __text=0 __pids+="$BASHPID "
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
            # shellcheck disable=SC2163 # NAME=VALUE is exported
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
            ;;
        head | tail | cut | tr | sed | awk | gawk | grep | egrep | sort | uniq | wc | cat | paste | rev | shuf | xargs | bc | tee)
            IFS= read -r -d '' text
            __answer "$text" "$@"
            ;;
        scontrol | hostname | nproc | nvidia-smi | date | nslookup | getent | host | dig | uuidgen | mktemp | seq | basename | dirname | realpath | readlink | whoami | expr | which | uname)
            __answer '' "$@"
            ;;
        *.sh | *.bash) __script "$@" || __started "$@" ;;
        *) __started "$@" ;;
    esac
}

# What a command prints that read a text.
__answer() {
    __say ask "$__line" "${SLURM_NODEID-0}" "${SLURMD_NODENAME-n1}" "$@"
    printf '%s' "$__reply"
}

# A command that another one starts.
__follow() {
    (($#)) || return 0
    command_not_found_handle "$@"
}

# A text that a shell executes, with its words.
__evaluate() {
    local __words=$1
    shift
    ((++__deep < 8)) || return 0
    __text=1
    builtin trap '__debug "$BASH_COMMAND" "$LINENO" "$*"' DEBUG
    eval "$__words"
}

# Whether a file can be read, here or beside the batch file; its name is in __reply then.
__file() {
    __reply=$1
    [[ -f $__reply ]] || __reply=$__beside/$1
    [[ -f $__reply && -r $__reply ]] && ((__deep < 8))
}

# A file that a shell executes, with its words.
__script() {
    __file "$1" || return
    __deep=$((__deep + 1)) __in="$__in file"
    shift
    builtin trap '__debug "$BASH_COMMAND" "$LINENO" "$*"' DEBUG
    # shellcheck disable=SC1090 # it is the user's
    builtin source "$__reply" "$@"
    return 0
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
                __evaluate "$text" "$@"
                return
                ;;
            -o | -O) shift ;;
        esac
        shift
    done
    if ((!$#)); then # what it reads, it executes
        [[ $__read ]] || IFS= read -r -d '' __read
        __evaluate "$__read"
        return
    fi
    __script "$@" || __started "${all[@]}"
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
    __say srun "$__line" "$__step" "$nodes" "$tasks" "${options[@]}"
    case $*:${1##*/} in
        bash:* | sh:* | 'bash -s:'* | 'bash -l:'*) IFS= read -r -d '' __read ;; # all tasks read the same
    esac
    local shown=$nodes count=$tasks node at before=0 here status=0
    ((known)) || shown=1 count=1
    for ((node = 0; node < shown; node++)); do
        here=$((count / shown + (node < count % shown)))
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
                ) || status=1
            fi
        done
        before=$((before + here))
    done
    return $status
}

# What changes the shell itself cannot run in a process of its own.
__source() {
    case ${1-} in
        '' | */activate | activate | */conda.sh | */mamba.sh | */.bashrc | */.bash_profile | */.profile | /etc/* | /usr/* | /opt/*) ;;
        *)
            if __file "$1"; then
                local __named=$__reply
                __say did "$__line" source "$1" read
                __deep=$((__deep + 1))
                # shellcheck disable=SC1090 # it is the user's
                builtin source "$__named" "${@:2}"
                __deep=$((__deep - 1))
                return 0
            fi
            ;;
    esac
    __unread=2
    local where=missing
    ((__moved)) && where=moved
    __say did "$__line" source "${1-}" "$where"
}
source() { __source "$@"; }
.() { __source "$@"; }
# What brings an environment: a module may set any variable in capitals.
__environment() {
    if [[ ${2-} == run ]]; then
        (command_not_found_handle "$@")
    else
        ((__unread)) || __unread=1
        __say did "$__line" "$@"
    fi
}
module() { __environment module "$@"; }
ml() { __environment ml "$@"; }
conda() { __environment conda "$@"; }
mamba() { __environment mamba "$@"; }
micromamba() { __environment micromamba "$@"; }
spack() { __environment spack "$@"; }
exec() {
    if (($#)); then
        [[ $1 == -a ]] && shift 2
        "$@"
        builtin exit
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
    __say did "$__line" cd "$@"
    builtin cd "$@" 2>/dev/null || : # the folder may be of another machine
}
pushd() { cd "$@" || :; }
popd() { :; }
trap() { [[ $__step ]] || __say did "$__line" trap "$@"; }
wait() { __say did "$__line" wait; }
kill() {
    [[ ${1-} != -0 ]] || { __say did "$__line" wait && return 1; }
}
ulimit() { :; }
shopt -s extdebug expand_aliases
set -T
