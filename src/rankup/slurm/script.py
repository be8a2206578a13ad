"""The job script: a pure function of what was asked for to the text of a bash script.

The script is for people: commented, and it runs without the rankup command. The bash in `parts/` is
constant; what differs from job to job stands in the settings at the top.
"""

from __future__ import annotations

import shlex
from importlib import resources

from ..base.errors import UserError
from . import top
from .asked import JobScript


def render(job: JobScript) -> str:
    """The text of the job script.

    Raises:
        UserError: a value cannot stand in a job script (a line break in a job's name, say).
    """
    _refuse_other_encodings(job)
    sections = [
        "\n".join(top.header(job)),
        "\n".join(top.place(job)),
        part("begin"),
        "\n".join(top.environment(job)),
        "\n".join(top.settings(job)),
        part("deadline"),
    ]
    if job.nodes > 1:
        sections.append(part("head"))
    else:
        sections.append("master_addr='' master_port='' # one node: nobody to meet\n")
    sections += [part("preflight"), part("meet") if job.nodes > 1 else "", _launch(job)]
    if job.monitor:
        sections[-1] = _put(sections[-1], *_SAMPLED)
        watch = part("watch")
        sections.append(_put(watch, *_BILLED) if job.whole_nodes else watch)
    if job.stage or job.mounts:
        every_node, run = _with_stage(part("every_node"), part("run"))
        sections += [part("stage"), every_node]
    else:
        run = part("run")
        sections += [part("every_node")]
    if job.crew:
        run = _put(_put(run, *_OTHERS_GO_ON), *_ENDED_WELL)
    if job.monitor:
        every_node = sections.pop()
        sections.append(_put(every_node, " launch\n", " launch watch_node\n"))
        run = _put(run, _LAST_WORDS, part("report") + _LAST_WORDS)
    sections.append(run)
    return "\n".join(section.rstrip("\n") + "\n" for section in sections if section)


def _launch(job: JobScript) -> str:
    if job.crew:
        start = shlex.join([*job.container, "python3", "-c", _CREW])
        return f"rank=({start})\n\n{part('launch_crew')}"
    text = part("launch_nodes" if job.nodes > 1 else "launch_node")
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


# As a script would it starts without the current folder on its path.
_CREW = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from rankup.launch.crew import main; sys.exit(main())"
)
# What srun does where one node's task ends, however, and where a node is gone.
_OTHERS_GO_ON = (
    "on_every_node --kill-on-bad-exit=1 ",
    'rm -f -- "$RANKUP_RUN_DIR/log/ended" # of an earlier life\n'
    "SLURM_NO_KILL='set' on_every_node --kill-on-bad-exit=0 ",
)
# srun's code is that of the task which is gone, although the others came to the end.
_ENDED_WELL = (
    "# A rank failed, and srun ended",
    "# The crews that are left say so where the run came to its end without the others.\n"
    'if [ -e "$RANKUP_RUN_DIR/log/ended" ]; then code=0; fi\n'
    "# A rank failed, and srun ended",
)

# Each node's launcher starts the sampler beside the ranks.
_SAMPLED = ("trap '' USR1", "watch_node\n    trap '' USR1")
_BILLED = ('--ranks "$ranks")', '--ranks "$ranks" --whole-node)')
# What `run.sh` ends with: the report comes before the cause of a failure, which is read last.
_LAST_WORDS = 'if [ "$code" -ne 0 ] && command -v rankup'

# The lines of `run.sh` in whose place `run_staged.sh` stands; without, the script has not changed.
_LAUNCH = 'on_every_node --kill-on-bad-exit=1 launch "${words[@]}"\ncode=$?\n'


def _with_stage(every_node: str, run: str) -> tuple[str, str]:
    """The last two parts in a job that stages."""
    space = " " * 12
    more = f"declare -p stage stage_options mounts\n{space}declare -p nodes "
    every_node = _put(every_node, "declare -p nodes ", more)
    functions = f" launch\n{space}declare -f stage_node launch_staged release_node\n"
    every_node = _put(every_node, " launch\n", functions)
    return every_node, _put(run, _LAUNCH, part("run_staged"))


def _put(text: str, old: str, new: str) -> str:
    """Replace the one place where a part has `old`: a script that lacked it would say nothing."""
    if text.count(old) != 1:
        raise ValueError(
            f"{old!r} is {text.count(old)} times in a part of the job script, not once"
        )
    return text.replace(old, new)


def part(name: str) -> str:
    """A constant piece of bash by its name, as it stands in `parts/`."""
    parts = resources.files(__package__).joinpath("parts")
    return parts.joinpath(f"{name}.sh").read_text("utf-8")


def _refuse_other_encodings(job: JobScript) -> None:
    texts = [*job.words, job.run_dir, job.work_dir, *job.variables.values(), *job.needs]
    texts += [*job.stage, *job.stage_options, job.stage_folder or "", *job.mounts]
    texts += [*job.container, job.activate or "", job.path or ""]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 20) : error.end + 20]
        raise UserError(f"{near!r} is not UTF-8, in which job scripts are written") from None
