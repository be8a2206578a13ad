"""`JobSpec`: every option of `rankup run`, declared once.

Of a declaration are made the command line, `[job]` of `rankup.toml`, what `job.json` keeps for a
resume, and the directives of the job script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..base import gone, secrets
from ..base.errors import UserError
from . import rules
from .rules import Rule, Table

# Of set-up lines: what may put another Python on PATH.
_LOADS = re.compile(
    r"(?:^|[\s;&(])(?:(?:module|ml|conda|mamba|micromamba|spack|source|\.)\s|PATH=)", re.MULTILINE
)
SLURM = "Slurm job"
DATA = "Data in the memory of each node"


@dataclass(frozen=True)
class Option:
    """An option: its words, and its meaning.

    Attributes:
        panel: of the help: `SLURM`, `DATA`, or empty for what concerns the command itself.
        toml: the rule for its value in `[job]`, where it may stand there.
        kept: `job.json` keeps it for a resume.
        sbatch: the option of sbatch that it becomes.
        queue: only a submission has a use for it; an allocation was granted with its own.
        common: a script may have an option of this name itself.
        joined: what is given now stands beside what was given before, and not in its place.
        off: `--no-...` switches it off.
        short: another name of one letter.
        typed: it stands on the command line.
    """

    help: str | None = None
    panel: str = ""
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    toml: Rule | None = None
    kept: bool = False
    sbatch: str | None = None
    queue: bool = False
    common: bool = False
    joined: bool = False
    off: bool = False
    short: str | None = None
    typed: bool = True


def _option(default: Any, text: str | None = None, **how: Any) -> Any:
    return field(default=default, metadata={"option": Option(text, **how)})


def _slurm(default: Any, text: str | None = None, **how: Any) -> Any:
    return _option(default, text, panel=SLURM, **{"kept": True, **how})


def _data(default: Any, text: str, **how: Any) -> Any:
    return _option(default, text, panel=DATA, kept=True, **how)


@dataclass(frozen=True)
class JobSpec:
    """The options of a run; None (or empty) where nothing was said.

    Attributes:
        target: a recipe's name or a script's path; None to take it from the resumed run.
        args: the words after TARGET; they belong to it.
        time, deadline: durations as the user writes them; `deadline` counts from the start.
        env: `NAME=VALUE`, or `NAME` for the value it has now.
        stage, mount: absolute paths once `stage.checked`.
        setup: lines of bash that prepare the job's environment, out of a batch file.
        like: the batch file out of which TARGET and its arguments were taken.
        id: of the new run; None for one by the time.
    """

    target: str | None = None
    args: tuple[str, ...] = ()
    nproc: int | None = _option(
        None,
        "Ranks per node; by default one per GPU, on CPU one.",
        least=1,
        toml=rules.whole(1),
        kept=True,
    )
    out: str | None = _option(None, "The run directory itself.")
    resume: str | None = _option(
        None, "Go on with a run: its id, a Slurm job's, `last`, or its directory."
    )
    local: bool = _option(False, "Here, also where Slurm is.")
    dry_run: bool = _option(False, "Print the job script and do nothing.")
    follow: bool = _option(False, "Wait for the job, showing its log.")
    monitor: bool = _option(True, "Sample what every GPU does, and report it at the end.", off=True)
    check: bool = _option(
        True, "Look first at what in a script stands in the way of many ranks.", off=True
    )
    module: bool = _option(
        False, "TARGET is PACKAGE.MODULE, as for `python -m`.", short="-m", common=True
    )
    nodes: int | None = _slurm(None, "Nodes; one by default.", least=1, toml=rules.whole(1))
    time: str | None = _slurm(
        None,
        "Time limit: 2h, 1d12h, 02:00:00.",
        metavar="TIME",
        toml=rules.TEXT,
        queue=True,
        common=True,
    )
    partition: str | None = _slurm(None, toml=rules.WORD, sbatch="partition", queue=True)
    account: str | None = _slurm(None, toml=rules.WORD, sbatch="account", queue=True)
    qos: str | None = _slurm(None, toml=rules.WORD, sbatch="qos", queue=True)
    reservation: str | None = _slurm(None, toml=rules.WORD, sbatch="reservation", queue=True)
    dependency: str | None = _slurm(None, "afterok:JOB and so on.", sbatch="dependency", queue=True)
    mail: str | None = _slurm(
        None,
        "Address to write to at the end.",
        toml=rules.WORD,
        sbatch="mail-user",
        queue=True,
        common=True,
    )
    name: str | None = _slurm(None, "The job's name.", common=True)
    container: str | None = _slurm(
        None, "Run in this Apptainer image.", metavar="IMAGE", toml=rules.TEXT
    )
    environment: str | None = _slurm(
        None,
        "Source this in the job; by default this Python's.",
        metavar="FILE",
        toml=rules.TEXT,
        common=True,
    )
    env: tuple[str, ...] = _slurm(
        (),
        "A variable, kept in a file only you read.",
        metavar="NAME[=VALUE]",
        toml=rules.list_of(rules.STRING, "a list of strings"),
        common=True,
        joined=True,
    )
    sbatch: tuple[str, ...] = _slurm(
        (),
        "A further #SBATCH option: --exclude=n1.",
        metavar="OPTION",
        toml=rules.OPTIONS,
        joined=True,
    )
    retries: int | None = _slurm(
        None,
        "Restarts after a node's failure; none by default.",
        least=0,
        most=1000,
        toml=rules.whole(0),
        queue=True,
    )
    max_attempts: int | None = _slurm(
        None,
        "Attempts in which it goes on by itself; 100 by default.",
        least=1,
        most=100000,
        toml=rules.whole(1),
    )
    deadline: str | None = _slurm(
        None,
        "Save and go on in a next attempt after this, before the limit.",
        metavar="TIME",
        toml=rules.TEXT,
        common=True,
    )
    allow_idle_gpus: bool = _slurm(False, "Pay for GPUs that no rank uses.")
    allow_missing: bool = _slurm(False, "Submit although something is not fetched yet.", kept=False)
    stage: tuple[str, ...] = _data(
        (), "Copy this to each node first; may be repeated.", metavar="FILE"
    )
    stage_to: str | None = _data(None, "On each node; by default its memory.", metavar="DIR")
    stage_reserve: str | None = _data(
        None, "Memory kept for the run's processes: 40GB.", metavar="SIZE"
    )
    stage_broadcast: bool = _data(False, "Read it once for all nodes (Slurm's sbcast).")
    mount: tuple[str, ...] = _data(
        (), "Mount this; RANKUP_MOUNTS says where. Repeatable.", metavar="FILE.sqsh"
    )
    setup: tuple[str, ...] = _slurm((), typed=False)
    like: str | None = None
    id: str | None = None

    @property
    def loads(self) -> bool:
        """True where the set-up lines bring a Python of their own: no other is activated."""
        return not self.environment and any(map(_LOADS.search, self.setup))

    @property
    def stages(self) -> bool:
        """True where something is said of data in the nodes' memory."""
        return any(getattr(self, name) for name, one in OPTIONS.items() if one.panel == DATA)

    def over(self, defaults: Mapping[str, Any]) -> JobSpec:
        """These options, and where nothing was said those of `defaults`; `joined` ones together."""
        taken: dict[str, Any] = {}
        for name, option in OPTIONS.items():
            mine = getattr(self, name)
            value = defaults.get(name)
            if not option.kept or value is None:
                continue
            if option.joined:
                # What is said last wins; a resume has what the file says already. Of variables a
                # record has the names alone: with a value said now they need not be set here.
                key = _variable if name == "env" else str
                again = {key(one) for one in mine}
                taken[name] = (*(one for one in value if key(one) not in again), *mine)
            elif not _said(mine):
                taken[name] = tuple(value) if isinstance(value, list) else value
        return replace(self, **taken)

    def said(self) -> dict[str, Any]:
        """Return what a resume takes over, by name; of `env` the names, since values may be secret.

        Tuples are lists, as `job.json` has them.
        """
        values = {name: getattr(self, name) for name, option in OPTIONS.items() if option.kept}
        if self.env:
            values["env"] = tuple(_variable(entry) for entry in self.env)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if _said(value)
        }

    def directives(self) -> dict[str, str]:
        """Return what becomes an option of sbatch as it is, by its name there."""
        values = {option.sbatch: getattr(self, name) for name, option in OPTIONS.items()}
        found = {name: value for name, value in values.items() if name and value}
        return {**found, **({"mail-type": "BEGIN,END,FAIL,REQUEUE"} if self.mail else {})}


OPTIONS: Mapping[str, Option] = {
    one.name: one.metadata["option"] for one in fields(JobSpec) if "option" in one.metadata
}
# `[job]` of `rankup.toml`.
TABLE = Table({name: option.toml for name, option in OPTIONS.items() if option.toml is not None})


def flag(name: str) -> str:
    """An option as it stands on the command line."""
    return "--" + name.replace("_", "-")


def of_record(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `job.json` says of a run's options, as `JobSpec.over` takes it.

    A dependency was one of that submission, values of `env` lie in the run's own file.
    """
    return {name: value for name, value in launch.items() if name not in ("env", "dependency")}


def _variable(entry: str) -> str:
    return entry.partition("=")[0]


def _said(value: object) -> bool:
    return bool(value) or (value is not False and value == 0)  # 0 retries were asked for


def variables(entries: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """`--env` entries as a mapping.

    Raises:
        UserError: no name of a variable, or a name alone that is not set now.
    """
    found = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"--env {name!r} is not the name of a variable; write NAME=VALUE")
        if not equals:
            if name not in environment:
                raise UserError(f"--env {name}: {name} is not set here; write {name}=VALUE")
            value = environment[name]
        if re.match(r"SLURM_|(?i:RANKUP_)|(UID|EUID|PPID|PATH|IFS|BASH\w*|SHELLOPTS)$", name):
            raise UserError(f"--env {name}: the job script or bash sets {name} itself")
        try:
            if "\0" in value:
                raise UserError(f"--env {name}: a value cannot hold a null byte")
            value.encode()
        except UnicodeEncodeError:
            raise UserError(f"--env {name}: the value is not UTF-8") from None
        found[name] = value
    return found


def refuse_secrets(words: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Refuse tokens among words that would stand in the job script and in `ps`.

    Raises:
        UserError: a word holds a known service's token, the value of a variable such as
            `HF_TOKEN`, or follows an option such as `--password`; the message does not repeat it.
    """
    if option := secrets.option_with_secret(words):
        raise UserError(
            f"{option} has a secret as its value; it would stand in the job script and in "
            "everybody's `ps`. Let the script read a variable, and hand that over with --env NAME "
            "(kept in a file only you can read)"
        )
    values = secrets.values(environment)
    for word in words:
        names = [name for value, name in values.items() if value in word]
        if names or secrets.TOKEN.search(word):
            what = f"the value of ${names[0]}" if names else "a token"
            raise UserError(
                f"one of the arguments holds {what}; it would stand in the job script and in "
                f"everybody's `ps`. Let the script read a variable, and hand that over with "
                f"--env {names[0] if names else 'NAME'} (kept in a file only you can read)"
            )


# Short and long names of sbatch's options that the job script sets, and who is asked for them.
_OURS = {
    **dict.fromkeys(("nodes", "N"), "--nodes"),
    **dict.fromkeys(("ntasks", "n", "ntasks-per-node"), "--nproc: torchrun starts the ranks"),
    **dict.fromkeys(("time", "t"), "--time"),
    **dict.fromkeys(("job-name", "J"), "--name"),
    **dict.fromkeys(("partition", "p"), "--partition"),
    **dict.fromkeys(("account", "A"), "--account"),
    **dict.fromkeys(("qos", "q"), "--qos"),
    **dict.fromkeys(("dependency", "d"), "--dependency"),
    **dict.fromkeys(("output", "o", "error", "e"), "`rankup logs`: the log lies in the run"),
    **dict.fromkeys(("chdir", "D"), "nothing: the script runs where you are"),
}


def refuse_own_directives(lines: tuple[str, ...]) -> None:
    """Refuse `--sbatch` options that would contradict the rest of the job script.

    Raises:
        UserError: one is no option, or is set by rankup; says how to ask for it.
    """
    for line in lines:
        match = re.match(r"--?([A-Za-z][\w-]*)", line)
        if match is None:
            raise UserError(f"--sbatch {line!r} is no option of sbatch; write --sbatch=--{line}")
        name = match[1] if line.startswith("--") else match[1][0]
        if name in ("array", "a"):
            gone.refuse("run", "--array")
        if name in _OURS:
            raise UserError(f"--sbatch {line}: the job script sets this; use {_OURS[name]}")
