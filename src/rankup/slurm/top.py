"""The top of a job script, all that differs from job to job: directives, environment, settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ..base.errors import UserError
from .asked import JobScript
from .times import time_text

_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "offline",
}
_SIGNAL_SECONDS = 60  # before the limit, where the clock in the ranks did not stop the run


def header(job: JobScript) -> Iterator[str]:
    ranks = f"{job.nodes} x {job.ranks} rank{'s' if job.nodes * job.ranks > 1 else ''}"
    yield "#!/bin/bash"
    yield "# shellcheck disable=SC2034,SC2317 # functions and settings go to the nodes as text"
    yield f"# {_comment(job.name)} on {ranks}, written by rankup {job.version}".rstrip()
    if job.made_by:
        yield f"# Made by:        {_comment(shlex.join(job.made_by))}"
    log = f"{job.run_dir}/log"
    yield f"# To submit it:   mkdir -p {_comment(shlex.quote(log))} && sbatch THIS_FILE"
    yield "# It needs torchrun on PATH, and no rankup"
    if job.recipe:
        yield "# but for the recipe, whose data `rankup run` puts into the run directory."
    if job.private:
        file = _comment(shlex.quote(f"{job.run_dir}/env"))
        yield f"# `rankup run` writes what --env gave into {file} (NAME=VALUE, chmod 600)."
    yield from (f"#SBATCH {line}" for line in _sbatch(job))
    yield from (f"#SBATCH {_one_line(line, 'a #SBATCH line')}" for line in job.lines)


def _sbatch(job: JobScript) -> Iterator[str]:
    output = f"{job.run_dir}/log/{'%A_%a' if 'array' in job.options else '%j'}.out"
    values = {
        "job-name": job.name,
        "nodes": str(job.nodes),
        "ntasks-per-node": "1",  # torchrun starts the ranks of a node
        "cpus-per-task": str(job.cpus or ""),
        "gres": f"gpu:{job.gpus}" if job.gpus else "",
        "time": time_text(job.minutes) if job.minutes else "",
        "signal": f"USR1@{_SIGNAL_SECONDS}" if job.minutes * 60 > 4 * _SIGNAL_SECONDS else "",
        "chdir": job.run_dir,
    }
    for name, value in values.items():
        if value:
            yield f"--{name}={_quoted(value, name)}"
    escaped = job.run_dir.replace("%", "%%")
    yield f"--output={_quoted(output.replace(job.run_dir, escaped, 1), 'output')}"
    yield "--open-mode=append"
    yield "--requeue"
    if job.crew:
        yield "--no-kill"  # a node that dies takes its own workers along, not the job
    for name, value in job.options.items():
        yield f"--{name}={_quoted(value, name)}" if value else f"--{name}"


def place(job: JobScript) -> Iterator[str]:
    yield _rule("this life of the run")
    yield "trap '' USR1 # the ranks take it as a wish to stop, this shell does not"
    yield f"rankup_base={shlex.quote(job.run_dir)}"
    if "array" in job.options:
        yield "export RANKUP_RUN_DIR=$rankup_base/array/$SLURM_ARRAY_TASK_ID # one run per task"
    else:
        yield "export RANKUP_RUN_DIR=$rankup_base"
    yield f"rankup_lives={job.lives} # at most, and then somebody should look"
    yield f"rankup_retries={job.retries} # times that Slurm may start the job again by itself"
    yield f"RANKUP_RESUME={int(job.resume)} # whether there was a life before this job"


def environment(job: JobScript) -> Iterator[str]:
    yield _rule("environment")
    folder = shlex.quote(job.work_dir)
    yield f'cd -- {folder} || end_life 1 "$(hostname) cannot enter it; is it mounted? "{folder}'
    for name, value in {**(_OFFLINE if job.offline else {}), **job.fetched}.items():
        yield f'export {name}="${{{name}:-{value}}}"'
    for name, value in job.variables.items():
        yield f"export {name}={shlex.quote(value)}"
    yield "export PYTHONUNBUFFERED=1"
    if job.activate:
        activate = shlex.quote(job.activate)
        yield "activate() { # in a function: what it sources sees no words of this script"
        yield "    # shellcheck disable=SC1090,SC1091"
        yield f"    source {activate}"
        yield "}"
        yield f'[ -r {activate} ] || end_life 1 "cannot read "{activate}'
        yield """trap 'end_life 1 "the environment file calls exit, which ends the job"' EXIT"""
        yield f'activate || echo "rankup: warning: exit code $? from "{activate} >&2'
        yield "trap - EXIT"
        yield "set +e"
        yield f"cd -- {folder} || exit 1 # wherever that went"
    elif job.path:
        yield f"export PATH={shlex.quote(job.path)}:$PATH"
    if job.private:
        yield "private=$rankup_base/env # from --env; a file of yours that nobody else can read"
        yield 'if [ ! -O "$private" ]; then end_life 1 "$private is missing, or not your file"; fi'
        yield "set -a"
        yield "# shellcheck disable=SC1090"
        yield 'source "$private"'
        yield "set +a"


def settings(job: JobScript) -> Iterator[str]:
    yield _rule("what this job runs")
    yield f"words=({shlex.join(job.words)})"
    yield f"nodes={job.nodes} ranks={job.ranks} gpus={job.gpus} # ranks and GPUs are per node"
    yield f"minutes={job.minutes} # time limit"
    yield f"stop_after={job.stop_after or ''} # seconds; empty: shortly before the time limit"
    yield f"suffix={shlex.quote(job.host_suffix)} # of a node's name in the fast network"
    yield f"srun_options=({shlex.join(job.srun_options)})"
    yield f"needs=({shlex.join(job.needs)}) # every node has to see these"
    programs = [job.container[0], "python3"] if job.container else ["torchrun", "python3"]
    if job.recipe and not job.container:
        programs.append("rankup-rank")
    yield f"programs=({shlex.join(programs)})"
    if job.stage or job.mounts:
        yield f"stage=({shlex.join(job.stage)}) # each node copies these first"
        yield f"stage_options=({shlex.join(job.stage_options)})"
        yield f"mounts=({shlex.join(job.mounts)}) # each node mounts these first"
        if job.stage_folder is not None:
            yield f"export RANKUP_STAGE_DIR={shlex.quote(job.stage_folder)} # on each node"
    yield "# srun does not take --cpus-per-task over from sbatch since Slurm 22.05"
    cpus = '"${SLURM_CPUS_PER_TASK:-${SLURM_JOB_CPUS_PER_NODE%%[!0-9]*}}"'
    yield f"export SRUN_CPUS_PER_TASK={cpus}"
    yield 'export PYTHONHASHSEED="${PYTHONHASHSEED:-0}" # ranks have one order of a set'
    if job.threads:
        yield "threads=$((SRUN_CPUS_PER_TASK / ranks)) # torchrun would set 1"
        yield 'export OMP_NUM_THREADS="$((threads > 0 ? threads : 1))"'
    yield "set -u"


def _rule(title: str) -> str:
    return f"# ---- {title} ".ljust(100, "-")


def _comment(text: str) -> str:
    """On one line, whatever it holds."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _one_line(text: str, what: str) -> str:
    if not text.isprintable():
        raise UserError(f"{what} cannot hold a line break or a control character: {text!r}")
    return text


def _quoted(value: str, name: str) -> str:
    """A value as sbatch reads it in a #SBATCH line: a backslash escapes, also within quotes."""
    _one_line(value, f"--{name}")
    if name == "output" and "\\" in value:
        raise UserError(f"the run directory {value} has a backslash, at which Slurm loses the log")
    if value and all(c.isalnum() or c in "-_.,:/@%=+&|" for c in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
