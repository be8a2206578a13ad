"""The only place that starts Slurm's commands: with a time limit, in plain text, errors explained.

Text, not JSON: `scontrol --json` came with 23.02, and its form has changed with every version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..base.errors import UserError
from . import parse, reasons
from .parse import NODE_FORMAT, Accounted, Partition, Queued, partitions

# A controller that is merely busy gets a second, longer try.
PING_TIMEOUTS = (2.0, 8.0)
_AT_ONCE = 200  # jobs that one sacct is asked for

# Variables that change options, columns or the cluster behind the caller's back (SBATCH_* even wins
# over the script's own lines).
_STRIPPED = (
    "SBATCH_",
    "SQUEUE_",
    "SINFO_",
    "SACCT_",
    "SCANCEL_",
    "SCONTROL_",
    "SLURM_CLUSTERS",
)
_JOB_ID = re.compile(r"(\d+)(?:;\S*)?")
_UP = re.compile(r"\bis UP\b")
_NOT_KNOWN = re.compile(r"invalid job id|job \S+ not found", re.IGNORECASE)
_OVER = re.compile(r"invalid job id|already completing or completed", re.IGNORECASE)
_NO_CONFIGURATION = re.compile(
    r"could not establish a configuration source|unable to process configuration file"
    r"|clustername needs to be specified|dns srv lookup failed|cannot stat file",
    re.IGNORECASE,
)
_NO_ACCOUNTING = re.compile(
    r"accounting storage is disabled|not running a supported accounting_storage", re.IGNORECASE
)


class SlurmError(UserError):
    """A Slurm command failed: which, what it said, what that means and what to do.

    Attributes:
        command: the command, such as "sbatch".
        said: what it said, in its own words.
        unreachable: there was no answer: whether it happened is not known, and the same may work
            later.
    """

    def __init__(self, command: str, said: str, advice: str = "", *, unreachable: bool = False):
        super().__init__(f"{command}: {said}{'' if said.endswith('.') else '.'} {advice}".rstrip())
        self.command = command
        self.said = said
        self.unreachable = unreachable


@dataclass(frozen=True)
class Client:
    """Slurm's commands as functions. All raise SlurmError.

    Args:
        timeout: seconds after which a command is ended.
        environment: of the commands; None: that of this process.
    """

    timeout: float = 30.0
    environment: Mapping[str, str] | None = None

    def run(self, *words: str, timeout: float | None = None, input: str | None = None) -> str:
        """Run a command and return what it printed."""
        result = self._run(words, timeout, input)
        if result.returncode:
            raise _refused(words[0], result)
        return result.stdout

    def presence(self) -> Literal["answers", "silent", "absent"]:
        """Return the presence of Slurm, and of a controller that answers.

        `absent`: no `sbatch` on PATH, or one without any configuration; `silent`: there is one,
        and it is down, or does not answer in one of `PING_TIMEOUTS`.
        """
        if shutil.which("sbatch", path=self._environ("sbatch").get("PATH", os.defpath)) is None:
            return "absent"
        for seconds in PING_TIMEOUTS:
            try:
                result = self._run(("scontrol", "ping"), seconds, None)
            except SlurmError as error:
                if error.unreachable:
                    continue
                return "absent"
            if _UP.search(result.stdout):  # the exit code counts a backup that is down, too
                return "answers"
            said = result.stdout + result.stderr
            return "absent" if _NO_CONFIGURATION.search(said) else "silent"
        return "silent"

    def partitions(self) -> dict[str, Partition]:
        """All partitions by name, the hidden ones too."""
        shown = self.run("scontrol", "-a", "show", "partition", "-o")
        return partitions(shown, self.run("sinfo", "-a", "-h", "-e", "-o", NODE_FORMAT))

    def accounts(self, user: str) -> frozenset[str] | None:
        """The user's accounts on this cluster; None where that cannot be known (no slurmdbd)."""
        where = [f"user={user}"]
        try:
            if cluster := self.cluster_name():
                where.append(f"cluster={cluster}")
            text = self.run("sacctmgr", "-n", "-P", "show", "assoc", *where, "format=Account")
        except SlurmError:
            return None
        return frozenset(line.strip() for line in text.splitlines() if line.strip()) or None

    def cluster_name(self) -> str | None:
        """The cluster's name in Slurm's configuration."""
        return self._config().get("ClusterName") or None

    def submit(self, script: Path, *options: str) -> str:
        """Submit a job script; the job's id. The job starts in the present working directory.

        Where the error is `unreachable`, the job may be there all the same.
        """
        text = self.run("sbatch", "--parsable", *options, os.path.abspath(script))
        # A site's plugins may print lines of their own before it.
        for line in reversed(text.splitlines()):
            if match := _JOB_ID.fullmatch(line.strip()):
                return match[1]
        raise SlurmError(
            "sbatch",
            f"printed {text.strip()[:200]!r}, not the id of a job",
            "See `squeue --me` for whether the job is there.",
            unreachable=True,
        )

    def mine(self) -> list[Queued]:
        """This user's jobs that wait or run."""
        words = ("squeue", "-a", "-h", "-o", parse.QUEUE_FORMAT, "-u", str(os.getuid()))
        rows = parse.queue_rows(self.run(*words))
        return [row for row in rows if row.uid == os.getuid() and reasons.is_live(row.state)]

    def show(self, job_id: str) -> list[dict[str, str]]:
        """The fields of `scontrol show job`, none when it is forgotten."""
        result = self._run(("scontrol", "show", "job", "-o", job_id), None, None)
        if result.returncode and not _NOT_KNOWN.search(result.stderr + result.stdout):
            raise _refused("scontrol", result)
        return parse.job_records(result.stdout)

    def account_records(self, job_ids: Sequence[str]) -> list[Accounted]:
        """Return what Slurm's accounting holds of this user's jobs; none where it is disabled."""
        fields, found = ",".join(parse.ACCOUNT_FIELDS), []
        for first in range(0, len(job_ids), _AT_ONCE):
            ids = ",".join(job_ids[first : first + _AT_ONCE])
            words = ("sacct", "-X", "-n", "-P", "--duplicates", "-o", fields, "-j", ids)
            result = self._run((*words, "-u", str(os.getuid())), None, None)
            if result.returncode and not _NO_ACCOUNTING.search(result.stderr):
                raise _refused("sacct", result)
            found += parse.account_rows(result.stdout)
        return found

    def cancel(self, ids: Iterable[str]) -> None:
        """Cancel jobs; one that has ended already is no error."""
        if words := list(ids):
            result = self._run(("scancel", *words), None, None)
            if result.returncode and not _OVER.search(result.stderr):
                raise _refused("scancel", result)

    def _config(self) -> dict[str, str]:
        return parse.config_values(self.run("scontrol", "show", "config"))

    def _run(
        self, words: Sequence[str], timeout: float | None, input: str | None
    ) -> subprocess.CompletedProcess[str]:
        seconds = self.timeout if timeout is None else timeout
        try:
            return subprocess.run(
                words,
                env=self._environ(words[0]),
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            done = " The job may be there all the same: see `squeue --me`." * (words[0] == "sbatch")
            raise SlurmError(
                words[0],
                f"no answer in {seconds:g} s",
                f"The controller is busy or down; try again in some minutes.{done}",
                unreachable=True,
            ) from None
        except FileNotFoundError:
            raise SlurmError(
                words[0],
                "there is no such command on PATH",
                "Slurm's commands are on the login nodes; elsewhere use `rankup run --local`.",
            ) from None
        except OSError as error:
            raise SlurmError(words[0], f"could not be started: {error.strerror}") from None

    def _environ(self, command: str) -> dict[str, str]:
        given = os.environ if self.environment is None else self.environment
        kept = {name: value for name, value in given.items() if not name.startswith(_STRIPPED)}
        if command == "sbatch":
            # Its environment becomes that of the job, which is not to take what another job's
            # shell says of itself (its cores, its restarts) for its own.
            return {
                name: value
                for name, value in kept.items()
                if not name.startswith("SLURM_") or name == "SLURM_CONF"
            }
        return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def is_ours(uid: int | None, work_dir: str, folder: Path) -> bool:
    """Return True for a job of this user with `folder` as its working directory.

    Job numbers wrap, and clusters share file systems: a number alone may be another job's.
    """
    if uid != os.getuid() or not work_dir:
        return False
    return work_dir == str(folder) or os.path.realpath(work_dir) == os.path.realpath(folder)


def _refused(command: str, result: subprocess.CompletedProcess[str]) -> SlurmError:
    said = reasons.tidy(result.stderr) or reasons.tidy(result.stdout)
    said = said or f"exit code {result.returncode}, without a word"
    unreachable = reasons.is_unreachable(said)
    return SlurmError(command, said, reasons.advice(said), unreachable=unreachable)
