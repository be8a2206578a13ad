"""The only place that starts Slurm's commands: with a time limit, in plain text, errors explained.

Text, not JSON: `scontrol --json` came with 23.02, and its form has changed with every version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import UserError
from . import parse, refusals
from .parse import Accounted, Queued
from .partitions import NODE_FORMAT, Partition, partitions

PING_TIMEOUT = 2.0

# Variables that change options or columns behind the caller's back (SBATCH_* even wins over the
# script's own lines).
_STRIPPED = ("SBATCH_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_")
_JOB_ID = re.compile(r"(\d+)(?:;\S*)?")
_NOT_KNOWN = re.compile(r"invalid job id|job \S+ not found", re.IGNORECASE)
_OVER = re.compile(r"invalid job id|already completing or completed", re.IGNORECASE)
_NO_ACCOUNTING = re.compile(
    r"accounting storage is disabled|not running a supported accounting_storage", re.IGNORECASE
)


class SlurmError(UserError):
    """A Slurm command failed: which, what it said, what that means and what to do.

    Attributes:
        command: the command, such as "sbatch".
        said: what it said, in its own words.
        unreachable: the controller did not answer, so that the same may work later.
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

    def answers(self) -> bool:
        """Whether `sbatch` is on PATH and a controller answers within `PING_TIMEOUT`."""
        if shutil.which("sbatch", path=self._environ("sbatch").get("PATH", os.defpath)) is None:
            return False
        return self.reachable(PING_TIMEOUT)

    def reachable(self, timeout: float | None = None) -> bool:
        """Whether a controller answers. Where none does, other commands try for 10 s and more."""
        try:
            result = self._run(("scontrol", "ping"), timeout, None)
        except SlurmError:
            return False
        # The exit code counts a backup that is down, too.
        return bool(re.search(r"\bis UP\b", result.stdout))

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

    def requeue_allowed(self) -> bool:
        """Whether a batch job may be requeued unless it says otherwise (JobRequeue)."""
        return self._config().get("JobRequeue") == "1"

    def submit(self, script: Path, *options: str) -> str:
        """Submit a job script; the job's id. The job starts in the present working directory."""
        text = self.run("sbatch", "--parsable", *options, os.path.abspath(script))
        # A site's plugins may print lines of their own before it.
        for line in reversed(text.splitlines()):
            if match := _JOB_ID.fullmatch(line.strip()):
                return match[1]
        raise SlurmError(
            "sbatch",
            f"printed {text.strip()[:200]!r}, not the id of a job",
            "See `squeue --me` for whether the job is there.",
        )

    def test_only(self, script: Path, *options: str) -> str | None:
        """Why sbatch would refuse the script; None where it would not.

        It accepts what never starts, too: a time or a number of nodes over the partition's limit.
        """
        try:
            self.run("sbatch", "--test-only", *options, os.path.abspath(script))
        except SlurmError as error:
            if error.unreachable:
                raise
            return str(error)
        return None

    def queue(self, ids: Sequence[str]) -> dict[str, list[Queued]]:
        """What squeue knows, by the ids asked for; an array is one row per task.

        Jobs that have ended, or that Slurm does not know, are absent.
        """
        if not ids:  # squeue would list everybody's jobs
            return {}
        words = ("squeue", "-h", "-r", "-o", parse.QUEUE_FORMAT, "-j", ",".join(ids))
        result = self._run(words, None, None)
        if result.returncode and not _NOT_KNOWN.search(result.stderr):
            raise _refused("squeue", result)
        found: dict[str, list[Queued]] = defaultdict(list)
        for row in parse.queue_rows(result.stdout):
            for name in {row.job_id, re.split(r"[_+]", row.job_id, maxsplit=1)[0]}.intersection(
                ids
            ):
                found[name].append(row)
        return dict(found)

    def show(self, job_id: str) -> list[dict[str, str]]:
        """The fields of `scontrol show job`, one record per task; none when it is forgotten."""
        result = self._run(("scontrol", "show", "job", "-o", job_id), None, None)
        if result.returncode and not _NOT_KNOWN.search(result.stderr + result.stdout):
            raise _refused("scontrol", result)
        return parse.job_records(result.stdout)

    def account_records(self, job_id: str) -> list[Accounted]:
        """What Slurm's accounting holds, oldest life first; none where accounting is disabled."""
        fields = ",".join(parse.ACCOUNT_FIELDS)
        words = ("sacct", "-X", "-n", "-P", "--duplicates", "-o", fields, "-j", job_id)
        result = self._run(words, None, None)
        if result.returncode and not _NO_ACCOUNTING.search(result.stderr):
            raise _refused("sacct", result)
        return parse.account_rows(result.stdout)

    def cancel(self, ids: Iterable[str]) -> None:
        """Cancel jobs; one that has ended already is no error."""
        if words := list(ids):
            self._tell(("scancel", *words))

    def signal(self, job_id: str, name: str, *, full: bool = False) -> None:
        """Send a signal such as "USR1" to the job's steps; `full`: to its batch script as well."""
        self._tell(("scancel", f"--signal={name}", *(("--full",) if full else ()), job_id))

    def requeue(self, job_id: str) -> None:
        """End the job's present life and put it back into the queue, under the same id."""
        self.run("scontrol", "requeue", job_id)

    def _tell(self, words: tuple[str, ...]) -> None:
        result = self._run(words, None, None)
        if result.returncode and not _OVER.search(result.stderr):
            raise _refused(words[0], result)

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
        if command != "sbatch":  # whose environment becomes that of the job
            # 0: lists of array tasks are not cut off.
            kept |= {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}
        return kept


def _refused(command: str, result: subprocess.CompletedProcess[str]) -> SlurmError:
    said = refusals.tidy(result.stderr) or refusals.tidy(result.stdout)
    said = said or f"exit code {result.returncode}, without a word"
    unreachable = refusals.is_unreachable(said)
    return SlurmError(command, said, refusals.advice(said), unreachable=unreachable)
