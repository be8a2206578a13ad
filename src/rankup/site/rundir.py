"""The run directory: everything about one run, made before anything starts.

<runs>/<name>/<id>/   job.json · job.sh · log/ · metrics.jsonl · monitor/ · checkpoints/ ·
                     model-final.pt or model-final/ · report.html · report.pdf · report.txt

`job.json` and `job.sh` may hold what the user gave as arguments, so only the user reads them.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import string
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from ..base.errors import UserError
from ..base.files import open_regular, tail, user_path, write_json

T = TypeVar("T")
JOB = "job.json"
ATTEMPTS = "attempts.jsonl"
PROFILE = "profile"  # folder of traces, and of what `monitor/profiles.py` reads
_FORMAT = "%Y-%m-%dT%H:%M:%S%z"
_LONGEST = 4 * 1024 * 1024  # bytes of records that are read, the last ones


@dataclass(frozen=True)
class Job:
    """The run as it was asked for.

    Attributes:
        kind: `recipe` or `script`.
        target: the recipe's name, or the script's absolute path.
        args: the words after TARGET.
        versions: of rankup, Python and torch.
        git: commit of the working directory and whether it was changed since; empty outside one.
        attempts: each start of the run that was asked for: when, where, on how many ranks, as which
            Slurm job (`job`). What a job did by itself afterwards stands in `attempts.jsonl`.
        launch: options of `rankup run` that a resume takes over, by name.
        module: the name by which the script is run, as by `python -m`; None for its path.
        kept: what a recipe has read of files that may be gone at a resume, by field of its options.
    """

    id: str
    kind: str
    target: str
    args: list[str]
    cwd: str
    versions: dict[str, str]
    git: dict[str, Any]
    attempts: list[dict[str, Any]] = field(default_factory=list)
    launch: dict[str, Any] = field(default_factory=dict)
    module: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return what the run is called: the recipe, the script or the package."""
        path = Path(self.target)
        return path.parent.name if path.name == "__main__.py" else path.stem

    @property
    def words(self) -> tuple[str, ...]:
        """Return what starts a rank's part of the run: as `rankup-rank`, or `python`, takes it."""
        return (*(("-m", self.module) if self.module else (self.target,)), *self.args)


def new_id() -> str:
    """Start time and four random letters: names sort by time, and `create` refuses one that is."""
    letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(4))
    return time.strftime("%Y%m%d-%H%M%S-") + letters


def now() -> str:
    """The time as `job.json` has it."""
    return time.strftime(_FORMAT)


def moment(text: object) -> float | None:
    """Unix seconds of what `now` returned; None for anything else."""
    with suppress(ValueError, TypeError, OverflowError):
        return datetime.strptime(str(text), _FORMAT).timestamp()
    return None


def create(path: Path) -> Path:
    """Make a run directory that was not there.

    Raises:
        UserError: it holds something already, or cannot be made.
    """
    if (path / JOB).exists():
        raise UserError(f"{path} is a run already; --resume {path}, or name another --out")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name a new folder with --out")
    try:
        if path.is_dir() and any(path.iterdir()):
            raise UserError(f"{path} is not empty; name a new folder with --out")
        path.mkdir(parents=True, exist_ok=True)
        (path / "log").mkdir()
        for folder in (path, path / "log"):  # whatever the umask is: a job runs what lies there
            if (mode := folder.stat().st_mode) & 0o002:
                folder.chmod(mode & ~0o002)
    except OSError as error:
        raise UserError(f"the run directory {path} cannot be made: {error.strerror}") from None
    return path


def write(path: Path, job: Job) -> None:
    """Write `job.json`, old or new."""
    write_json(path / JOB, asdict(job), private=True)


class ArrayError(UserError):
    """A run of version 0.2 that was an array of tasks, which are no runs any more."""


def read(path: Path) -> Job:
    """Read `job.json`.

    Raises:
        UserError: it is missing or damaged.
        ArrayError: of an array.
    """
    try:
        job = load(path / JOB, _job)
    except FileNotFoundError:
        raise UserError(f"{path} is no run directory: it has no {JOB}") from None
    if job.launch.get("array"):
        raise ArrayError(
            f"{path} is an array of version 0.2, which this version does not start, follow or end "
            f"(scancel does): `rankup report {path}/array/N` reports on one task, and what it "
            f"printed lies in {path / 'log'}"
        )
    return job


def _job(said: dict[str, Any]) -> Job:
    job = Job(**said)
    texts, tables = (job.id, job.target, job.cwd, *job.args), (job.launch, job.kept, *job.attempts)
    sound = all(isinstance(text, str) for text in texts)
    if job.kind not in ("recipe", "script") or not (
        sound and all(isinstance(table, dict) for table in tables)
    ):
        raise ValueError("a value is of the wrong kind")
    return job


def load(file: Path, made: Callable[[dict[str, Any]], T]) -> T:
    """Return what `made` makes of the JSON in a record of ours.

    Raises:
        UserError: it is damaged, or cannot be read.
        FileNotFoundError: it is not there.
    """
    try:
        with open_regular(file) as stream:
            return made(json.loads(stream.read()))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is damaged: {error}") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None


def records(path: Path) -> list[dict[str, Any]]:
    """Return what the job scripts wrote into `attempts.jsonl`, in order.

    {"job": id, "restart": n, "start": seconds, "nodes": host list}
    {"job": id, "restart": n, "end": seconds, "code": exit code}
    {"job": id, "follows": id}: a job that goes on where another stopped

    The last line may be torn, since its writer was killed.
    """
    found = []
    for line in tail(path / ATTEMPTS, _LONGEST):
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and "job" in record:
                found.append(record)
    return found


def metrics(path: Path, most: int) -> list[dict[str, Any]]:
    """Return the newest records of a run's `metrics.jsonl`, of at most so many bytes."""
    found = []
    for line in tail(path / "metrics.jsonl", most):
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                found.append(record)
    return found


def has_final_model(path: Path) -> bool:
    """Return whether a recipe's run has written the model that it came to (`train/final.py`)."""
    index = path / "model-final" / "model.safetensors.index.json"
    return (path / "model-final.pt").exists() or index.exists()


def slurm_jobs(path: Path, job: Job) -> list[str]:
    """Ids of the Slurm jobs that are attempts of this run, in order."""
    asked = [attempt["job"] for attempt in job.attempts if "job" in attempt]
    return list(dict.fromkeys([*asked, *(record["job"] for record in records(path))]))


def all_runs(runs: Path) -> list[Path]:
    """The run directories below `runs`; the one that was started or resumed last comes last."""
    return sorted((path.parent for path in runs.glob(f"*/*/{JOB}")), key=_asked_for)


def _asked_for(path: Path) -> tuple[float, str]:
    """Return the time of a run's last start, by its own record, else by its name."""
    when = None
    with suppress(Exception):  # whatever is wrong with one run, the others are found
        last = read(path).attempts[-1]
        when = moment(last.get("started", last.get("submitted")))
    if when is None:
        with suppress(ValueError, OverflowError):
            when = time.mktime(time.strptime(path.name[:15], "%Y%m%d-%H%M%S"))
    return when or 0.0, path.name


def find(runs: Path, run: str) -> Path:
    """The run directory meant by an id, a Slurm job id, `last`, or a path.

    Raises:
        UserError: there is no such run; the newest ones are named.
    """
    if (user_path(run, "RUN") / JOB).is_file():
        return Path(run).resolve()
    known = all_runs(runs)
    if run == "last" and known:
        return known[-1].resolve()
    for path in known:
        if path.name == run:
            return path.resolve()
    if run.isdigit():
        for path in reversed(known):
            # One broken run does not hide the others, in whichever way it is broken.
            with suppress(Exception):
                job = load(path / JOB, _job)  # of an array, too: whoever reads it says so
                inside = [str(attempt.get("allocation")) for attempt in job.attempts]
                if run in slurm_jobs(path, job) or run in inside:
                    return path.resolve()
    newest = ", ".join(path.name for path in known[:-4:-1]) or "none yet"
    raise UserError(
        f"no run {run!r}: neither a run directory, nor the id of a run or of its Slurm job in "
        f"{runs} (newest: {newest}); go to the folder it was started in, give the run directory, "
        f"or set `runs` in rankup.toml"
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the run while it is going on, so that it is not started a second time.

    Raises:
        UserError: another process holds it.
    """
    (path / "log").mkdir(exist_ok=True)
    with (path / "log" / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(
                f"{path} is going on already ({file.read().strip()}); wait for it or stop it first"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        yield
