"""The job script: a pure function of what was asked for to the text of a bash script.

The script is for people: commented, and it runs without the rankup command. It is one template,
`job.sh.j2`; what differs from job to job stands in the settings at its top.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ..base.errors import UserError
from .parse import time_text

if TYPE_CHECKING:
    import jinja2

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
        max_attempts: after so many the run stops, that a mistake does not go on for ever.
        options: further `#SBATCH` options by long name; an empty value is a flag.
        lines: what follows `#SBATCH ` literally, from the user.
        activate: file to source; `path` a folder to put on PATH instead.
        setup: lines of bash out of the user's own batch file, which stand there as they are.
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
        monitor: sample what each node does, and report it at the end.
        whole_nodes: all GPUs of the nodes are billed, also those that were not asked for.
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
    max_attempts: int = 100
    options: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    srun_options: tuple[str, ...] = ()
    activate: str | None = None
    path: str | None = None
    setup: tuple[str, ...] = ()
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
    monitor: bool = True
    whole_nodes: bool = False

    def programs(self) -> tuple[str, ...]:
        """Return what has to be on PATH."""
        if self.container:
            return self.container[0], "python3"
        return "torchrun", "python3", *(("rankup-rank",) if self.recipe else ())


def render(job: JobScript) -> str:
    """The text of the job script.

    Raises:
        UserError: a value cannot stand in a job script (a line break in a job's name, say).
    """
    text = _template().render(_values(job))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 20) : error.end + 20]
        raise UserError(f"{near!r} is not UTF-8, in which job scripts are written") from None
    return text


@cache
def _template() -> jinja2.Template:
    import jinja2  # 20 ms, for commands that render no script

    environment = jinja2.Environment(  # noqa: S701 - bash: every value goes through `word`
        comment_start_string="{##",  # bash has `${#array[@]}`
        keep_trailing_newline=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"word": shlex.quote, "words": shlex.join, "comment": _comment}
    text = resources.files(__package__).joinpath("job.sh.j2").read_text("utf-8")
    return environment.from_string(text)


def _values(job: JobScript) -> dict[str, Any]:
    """The names that the template uses."""
    staged = bool(job.stage or job.mounts)
    return {
        **vars(job),
        "directives": list(_directives(job)),
        "unless_set": {**(_OFFLINE if job.offline else {}), **job.fetched},
        "programs": job.programs(),
        "in_container": f"{shlex.join(job.container)} " if job.container else "",
        "staged": staged,
        "launcher": '"$launcher"' if staged else "launch",
        "torchrun": '"${torchrun[@]}"',
    }


def _directives(job: JobScript) -> Iterator[str]:
    """Yield what follows `#SBATCH `, line by line."""
    escaped = job.run_dir.replace("%", "%%")
    values = {
        "job-name": job.name,
        "nodes": str(job.nodes),
        "ntasks-per-node": "1",  # torchrun starts the ranks of a node
        "cpus-per-task": str(job.cpus or ""),
        "gres": f"gpu:{job.gpus}" if job.gpus else "",
        "time": time_text(job.minutes) if job.minutes else "",
        "signal": f"USR1@{_SIGNAL_SECONDS}" if job.minutes * 60 > 4 * _SIGNAL_SECONDS else "",
        "chdir": job.run_dir,
        "output": f"{escaped}/log/%j.out",
    }
    for name, value in values.items():
        if value:
            yield f"--{name}={_quoted(value, name)}"
    yield "--open-mode=append"
    yield "--requeue"
    for name, value in job.options.items():
        yield f"--{name}={_quoted(value, name)}" if value else f"--{name}"
    for line in job.lines:
        yield _one_line(line, "a #SBATCH line")


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
