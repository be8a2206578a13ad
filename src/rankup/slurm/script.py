"""The job script: a pure function of what was asked for to the text of a bash script.

The script is for people: commented, and it runs without the rankup command. The bash in `parts/` is
constant; what differs from job to job stands in the settings at the top.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources

from ..base.errors import UserError
from .times import time_text

_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "offline",
}
_SIGNAL_SECONDS = 60  # before the limit, where the clock in the ranks did not stop the run


@dataclass(frozen=True)
class JobScript:
    """Everything that a job script says.

    Attributes:
        words: TARGET and what belongs to it; a script by its absolute path.
        recipe: TARGET is a recipe, which rankup has to run.
        nodes, ranks: nodes, and ranks on each.
        gpus, cpus: of a node, granted by Slurm; 0 GPUs for none; None leaves CPUs to Slurm.
        minutes: time limit; 0 inside an allocation, which has its own.
        stop_after: seconds after the start at which to stop with a checkpoint, where that comes
            before the limit.
        retries: times that Slurm may start the job again by itself (a node failed).
        lives: after so many the run stops, that a mistake does not go on for ever.
        options: further `#SBATCH` options by long name; an empty value is a flag.
        lines: what follows `#SBATCH ` literally, from the user.
        activate: file to source; `path` a folder to put on PATH instead.
        variables: exported for the ranks.
        offline: the nodes have no network, and the usual libraries are told so.
        fetched: the same for what was fetched; values are plain words.
        private: variables stand in the file `env` of the run directory, which only its owner reads.
        container: an Apptainer image, and the words that start a program in it.
        needs: paths that every node has to see.
        stage: files and folders that each node copies into its memory first.
        stage_options: words of `rankup stage` for that.
        stage_folder: on each node, where the copies go; None leaves it to `rankup stage`.
        mounts: SquashFS images that each node mounts.
    """

    run_dir: str
    work_dir: str
    words: tuple[str, ...]
    recipe: bool
    name: str
    nodes: int
    ranks: int
    gpus: int
    cpus: int | None
    minutes: int
    made_by: tuple[str, ...] = ()
    version: str = ""
    resume: bool = False
    stop_after: int | None = None
    retries: int = 0
    lives: int = 100
    options: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    srun_options: tuple[str, ...] = ()
    activate: str | None = None
    path: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    offline: bool = True
    fetched: Mapping[str, str] = field(default_factory=dict)
    threads: bool = True
    private: bool = False
    container: tuple[str, ...] = ()
    host_suffix: str = ""
    needs: tuple[str, ...] = ()
    stage: tuple[str, ...] = ()
    stage_options: tuple[str, ...] = ()
    stage_folder: str | None = None
    mounts: tuple[str, ...] = ()


def render(job: JobScript) -> str:
    """The text of the job script.

    Raises:
        UserError: a value cannot stand in a job script (a line break in a job's name, say).
    """
    _refuse_other_encodings(job)
    sections = [
        "\n".join(_header(job)),
        "\n".join(_place(job)),
        _part("begin"),
        "\n".join(_environment(job)),
        "\n".join(_settings(job)),
        _part("deadline"),
    ]
    if job.nodes > 1:
        sections.append(_part("head"))
    else:
        sections.append("master_addr='' master_port='' # one node: nobody to meet\n")
    sections += [_part("preflight"), _part("meet") if job.nodes > 1 else "", _launch(job)]
    if job.stage or job.mounts:
        sections += [_part("stage"), *_with_stage(_part("every_node"), _part("run"))]
    else:
        sections += [_part("every_node"), _part("run")]
    return "\n".join(section.rstrip("\n") + "\n" for section in sections if section)


def _header(job: JobScript) -> Iterator[str]:
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
    for name, value in job.options.items():
        yield f"--{name}={_quoted(value, name)}" if value else f"--{name}"


def _place(job: JobScript) -> Iterator[str]:
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


def _environment(job: JobScript) -> Iterator[str]:
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
        yield f'activate || echo "rankup: warning: exit code $? from "{activate} >&2'
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


def _settings(job: JobScript) -> Iterator[str]:
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
    if job.threads:
        yield "threads=$((SRUN_CPUS_PER_TASK / ranks)) # torchrun would set 1"
        yield 'export OMP_NUM_THREADS="$((threads > 0 ? threads : 1))"'
    yield "set -u"


def _launch(job: JobScript) -> str:
    text = _part("launch_nodes" if job.nodes > 1 else "launch_node")
    if job.container:
        text = _put(text, "exec torchrun", f"exec {shlex.join(job.container)} torchrun")
    if job.recipe:
        rank = "rank=(rankup-rank)\n"
    elif job.container:
        rank = "rank=(python3)\n"
    else:
        rank = (
            "# rankup's own way to start a script, where it is there, keeps each rank's exception\n"
            "# for `rankup logs`; the script is the same.\n"
            "rank=(python3)\n"
            "if command -v rankup-rank >/dev/null; then rank=(rankup-rank); fi\n"
        )
    return rank + "\n" + text


# The lines of `run.sh` in whose place `run_staged.sh` stands; without, the script has not changed.
_LAUNCH = 'on_every_node --kill-on-bad-exit=1 launch "${words[@]}"\ncode=$?\n'


def _with_stage(every_node: str, run: str) -> tuple[str, str]:
    """The last two parts in a job that stages."""
    space = " " * 12
    more = f"declare -p stage stage_options mounts\n{space}declare -p nodes "
    every_node = _put(every_node, "declare -p nodes ", more)
    functions = f" launch\n{space}declare -f stage_node launch_staged release_node clear_node\n"
    every_node = _put(every_node, " launch\n", functions)
    return every_node, _put(run, _LAUNCH, _part("run_staged"))


def _put(text: str, old: str, new: str) -> str:
    """Replace the one place where a part has `old`: a script that lacked it would say nothing."""
    if text.count(old) != 1:
        raise ValueError(
            f"{old!r} is {text.count(old)} times in a part of the job script, not once"
        )
    return text.replace(old, new)


def _rule(title: str) -> str:
    return f"# ---- {title} ".ljust(100, "-")


def _part(name: str) -> str:
    parts = resources.files(__package__).joinpath("parts")
    return parts.joinpath(f"{name}.sh").read_text("utf-8")


def _comment(text: str) -> str:
    """On one line, whatever it holds."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _refuse_other_encodings(job: JobScript) -> None:
    texts = [*job.words, job.run_dir, job.work_dir, *job.variables.values(), *job.needs]
    texts += [*job.stage, *job.stage_options, job.stage_folder or "", *job.mounts]
    texts += [*job.container, job.activate or "", job.path or ""]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 20) : error.end + 20]
        raise UserError(f"{near!r} is not UTF-8, in which job scripts are written") from None


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
