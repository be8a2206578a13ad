"""Rules about the form of a batch script: what sbatch reads, and what it passes over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...base.errors import nearest
from ..batch import options
from ..rules.rule import Hit, Rule, rule
from .script import BatchScript

# Without these a job is another one than was meant, or is refused.
_PLACEHOLDER = re.compile(
    r"<[A-Za-z][\w ,.-]*>|\b(?:TODO|FIXME|CHANGE[_-]?ME|PLACEHOLDER|YOUR[_-]\w+)\b|^X{3,}$"
)


@rule("RK150", "error", "git's conflict markers")
def conflicts(script: BatchScript) -> Iterator[Hit]:
    """Lines that git leaves in a file when two changes of it could not be merged.

    Bash stops at the first of them, and sbatch reads the directives of both sides.

    ```diff
    -<<<<<<< HEAD
     srun python train.py
    -=======
    -srun python train.py --small
    ->>>>>>> other
    ```
    """
    for line in script.conflicts[:1]:
        yield Hit(
            line,
            f"git's conflict markers ({len(script.conflicts)} lines): bash stops at them",
            "keep one of the two versions and remove the lines <<<<<<<, ======= and >>>>>>>",
        )


@rule("RK151", "warning", "a directive that sbatch takes for a comment")
def not_read(script: BatchScript) -> Iterator[Hit]:
    """A line that is like a directive and is none: `##SBATCH`, `# SBATCH`, `#SBATCH` behind a
    space, `#SABTCH`, `SBATCH`. An option that is given elsewhere was switched off on purpose.

    sbatch reads lines that begin with exactly `#SBATCH`; the job gets the default, a few minutes
    and no GPU.

    ```diff
    -##SBATCH --account=abc
    +#SBATCH --account=abc
    ```
    """
    for number, text in _bare(script):
        yield Hit(
            number,
            f"`{text[:40]}` lacks its #: it is a command, and no directive behind it is read",
            "#SBATCH at the very beginning of the line",
            level="error",
        )
    for entry in script.directives:
        missing = [option for option in entry.options if script.option(option.name) is None]
        names = ", ".join(f"--{option.name}" for option in missing if not options.unknown(option))
        if names and not entry.exact:
            yield Hit(
                entry.line,
                f"`{entry.marker}` is a comment to sbatch, so {names} is not asked for",
                "write #SBATCH at the very beginning of the line, or remove it",
            )


@rule("RK152", "error", "a directive behind the first command")
def too_late(script: BatchScript) -> Iterator[Hit]:
    """A directive below the first command.

    sbatch stops reading at the first line that is neither empty nor a comment. What follows has no
    effect, and nothing says so.

    ```diff
    +#SBATCH --qos=long
     module load CUDA
    -#SBATCH --qos=long
    ```
    """
    first = script.first
    for entry in script.directives:
        if first is not None and entry.exact and entry.line > first:
            begins = script.lines[first - 1].strip()[:50]
            yield Hit(
                entry.line,
                f"sbatch reads no directives behind the first command (line {first}: {begins})",
                f"move it above line {first}",
            )


def _bare(script: BatchScript) -> list[tuple[int, str]]:
    """Lines that are a directive but for their #."""
    lines = enumerate(script.lines, 1)
    return [(at, line.strip()) for at, line in lines if re.match(r"\s*SBATCH\s+-", line)]


def hash_missing(script: BatchScript) -> Rule | None:
    """The rule that says all there is to say, where one # that is missing makes the rest follow."""
    first = script.lines[0]
    if not first.startswith("#!") and re.match(r"[\s#!]*/\S*sh\b", first):
        return no_script
    if _bare(script):
        return not_read
    exact = [entry for entry in script.directives if entry.exact]
    return too_late if exact and not any(entry.read for entry in exact) and script.first else None


@rule("RK153", "error", "no script to sbatch")
def no_script(script: BatchScript) -> Iterator[Hit]:
    """A first line that does not begin with `#!`, or lines that end as on Windows.

    sbatch refuses both.

    Let the first line be `#!/bin/bash`; `sed -i 's/\\r$//' job.sbatch` mends the ends of lines:

    ```diff
    +#!/bin/bash
     #SBATCH --time=01:00:00
     srun python train.py
    ```
    """
    first = script.lines[0]
    if not first.startswith("#!"):
        begin = f"it begins with {first[:40]!r}" if first.strip() else "its first line is empty"
        yield Hit(
            1,
            f"{begin}; sbatch refuses a script whose first line is not #!",
            "let the first line be #!/bin/bash",
        )
    for number, line in enumerate(script.lines, 1):
        if line.endswith("\r"):
            yield Hit(
                number,
                "lines end as on Windows (CR LF); sbatch refuses that",
                f"sed -i 's/\\r$//' {script.path.name}",
            )
            return


@rule("RK154", "error", "a directive that sbatch refuses or misreads")
def bad_option(script: BatchScript) -> Iterator[Hit]:
    """Options that sbatch does not have, words that are no option, quotes that do not end, a `=`
    behind a short option (`-N=2`), and variables, which are not expanded in a directive.

    sbatch refuses the script; a variable is taken literally. A name that is like none of sbatch's
    is a warning: plugins of a site have options of their own.

    `man sbatch` lists the options; comments behind them begin with `#`:

    ```diff
    -#SBATCH --acount=abc
    +#SBATCH --account=abc # of the course
    ```
    """
    for entry in script.directives:
        if entry.read and entry.fault:
            yield Hit(
                entry.line,
                f"its words cannot be told apart: {entry.fault}",
                "close the quote; spaces in a value need quotes",
            )
        if entry.read and entry.rest and entry.rest[0] not in ("hetjob", "packjob"):
            yield Hit(
                entry.line,
                f"{entry.rest[0]!r} is no option; sbatch refuses the script",
                "an option begins with -- and has its value behind a =; comments begin with #",
            )
    for option in script.options:
        name, value = option.name, option.value or ""
        if options.unknown(option):
            close = nearest(name, options.OF_SBATCH)
            like = close.startswith("did you mean")
            slip = like or not re.fullmatch(r"[a-z][a-z-]+", name)
            yield Hit(
                option.line,
                f"sbatch {'has' if slip else 'itself has'} no option "
                f"{'-' if len(name) == 1 else '--'}{name}",
                close if like and len(name) > 1 else "man sbatch lists those that it has",
                level="error" if slip else "warning",  # a plugin of the site may have that
            )
        elif value.startswith("="):
            yield Hit(
                option.line,
                f"a short option has no =: --{name} would be {value!r}",
                f"write --{name}{value}",
            )
        elif "$" in value:
            yield Hit(
                option.line,
                f"--{name}={value}: variables are not expanded in a directive",
                "write the value, or give it to sbatch on the command line",
                level="warning",
            )


@rule("RK166", "error", "a log in a folder that is not there")
def no_log(script: BatchScript) -> Iterator[Hit]:
    """`--output` or `--error` in a folder that is not there.

    Slurm does not make it. The job fails before its first line, and as there is no log nothing
    says why.

    ```diff
    -#SBATCH --output=logs/%j.out
    +#SBATCH --output=%j.out
    ```
    """
    for option in script.options:
        folder = Path(option.value or "").parent
        if option.name not in ("output", "error") or re.search("[%$]", str(folder)):
            continue
        if judged(folder) and not any((start / folder).is_dir() for start in script.folders):
            yield Hit(
                option.line,
                f"the folder {folder} is not there: the job dies without a log",
                f"mkdir -p {folder}",
            )


@rule("RK167", "error", "a placeholder was left")
def placeholder(script: BatchScript) -> Iterator[Hit]:
    """Values that were to be replaced: `<account>`, `YOUR_PROJECT`, `TODO`, `CHANGE_ME`.

    sbatch refuses an account that does not exist, or lets the job wait for ever; a script of that
    name is not there.

    Put your own value there; `rankup doctor` lists the accounts and partitions that you have:

    ```diff
    -#SBATCH --account=<account>
    +#SBATCH --account=abc
    ```
    """
    for option in script.options:
        if option.value and _PLACEHOLDER.search(option.value):
            yield Hit(
                option.line,
                f"--{option.name}={option.value} is a placeholder",
                f"put your own --{option.name} there",
            )


@rule("RK169", "error", "bash cannot read it")
def no_bash(script: BatchScript) -> Iterator[Hit]:
    """A script that `bash -n` rejects: a quote, a block or a substitution that does not end.

    Bash finds out when it comes to that line, in the job. The rules about commands are not applied
    to such a file.

    Close it; `bash -n job.sbatch` says where bash stops:

    ```diff
    -srun python train.py --name "a
    +srun python train.py --name "a"
    ```
    """
    if script.rejected:
        line, why = script.rejected
        yield Hit(line, f"bash cannot read it: {why}", "`bash -n` on the file says where")


def judged(path: Path) -> bool:
    """Return True where this machine can say if a path is there: not on another's file system."""
    if not path.is_absolute():
        return True
    return len(path.parts) > 1 and Path(*path.parts[:2]).exists()
