"""What can be asked of a Slurm job: options of `rankup run`, `[job]` of `rankup.toml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..base import secrets
from ..base.errors import UserError

# Tokens of well-known services by how they begin.


@dataclass(frozen=True)
class JobOptions:
    """Options of a job; None (or empty) where nothing was said.

    Attributes:
        time, deadline: durations as the user writes them; `deadline` counts from the start.
        container: an Apptainer image.
        environment: a file to source in the job.
        sbatch: further `#SBATCH` options, `--exclude=n1`.
        env: `NAME=VALUE`, or `NAME` for the value it has now.
        retries: times that Slurm may start the job again after the failure of a node.
        lives: most lives of the run in which it goes on by itself.
    """

    nodes: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    array: str | None = None
    dependency: str | None = None
    mail: str | None = None
    name: str | None = None
    container: str | None = None
    environment: str | None = None
    sbatch: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    retries: int | None = None
    lives: int | None = None
    deadline: str | None = None
    allow_idle_gpus: bool = False

    def over(self, defaults: Mapping[str, Any]) -> JobOptions:
        """These options, and where nothing was said those of `defaults`; lists are put together."""
        taken: dict[str, Any] = {}
        for field in fields(self):
            mine, value = getattr(self, field.name), defaults.get(field.name)
            if isinstance(mine, tuple):
                # What is said last wins; a resume has what the file says already. Of variables a
                # record has the names alone: with a value said now they need not be set here.
                name = _variable if field.name == "env" else str
                again = {name(one) for one in mine}
                kept = [one for one in value or () if name(one) not in again]
                taken[field.name] = (*kept, *mine)
            elif value is not None and not _said(mine):
                taken[field.name] = value
        return replace(self, **taken)

    def said(self) -> dict[str, Any]:
        """What was said, by name; of `env` only the names, since values may be secrets."""
        values = {name: value for name, value in asdict(self).items() if _said(value)}
        if self.env:
            values["env"] = [_variable(entry) for entry in self.env]
        return values


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
    **dict.fromkeys(("array", "a"), "--array"),
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
        if name in _OURS:
            raise UserError(f"--sbatch {line}: the job script sets this; use {_OURS[name]}")
