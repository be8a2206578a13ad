"""Start the runs: a state folder, the copies, one watched child; nothing of it is left."""

from __future__ import annotations

import glob
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...base.errors import UserError
from ...login.fetch import alone, environment
from ...login.fetch.inside.spec import STATE
from ...login.fetch.supervise import Ended, Interrupt, Limits, default_memory, watch
from ...site import config, detect
from ...site.caches import caches
from . import copies
from .plan import OUTCOMES, Outcome, Plan, Run, outcome_from

_CHILD = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from rankup.port.verify.inside.zygote import main; sys.exit(main())"
)
_PREFIX = "rankup-verify-"
_STARTING = 120.0  # seconds for torch to be imported, from a slow disk
WORLDS = (1, 2, 3)
KILL_AT = 2


@dataclass(frozen=True)
class Job:
    """What to run.

    Attributes:
        seconds: limit of each of the runs.
    """

    project: copies.Project
    args: tuple[str, ...]
    stand_ins: tuple[Path, ...]
    seconds: float


@contextmanager
def state_folder() -> Iterator[Path]:
    """A private folder that is gone afterwards; those of killed processes go first."""
    base = Path(tempfile.gettempdir())
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=base)).resolve()
    try:
        yield folder
    finally:
        _remove(folder)


def told(state: Path) -> Path:
    """Where the plan, the journals and the outcomes are: no copy lies below it."""
    return state / "told"


def run(job: Job, state: Path, tell: Callable[[str], None]) -> tuple[Outcome, ...]:
    """Make all runs; how they ended. Their journals are in `told`.

    Raises:
        UserError: the machine does not let the runs be made, or no torch is installed.
        KeyboardInterrupt: a signal asked for the end.
    """
    plan = _plan(job, state)
    plan.write()
    said = state / "said.txt"
    with Interrupt() as interrupt, said.open("wb") as out:
        ended = _watch(job, plan, interrupt, out.fileno(), tell)
    if interrupt.number is not None:
        raise (
            KeyboardInterrupt
            if interrupt.number == signal.SIGINT
            else SystemExit(128 + interrupt.number)
        )
    if ended.why == "memory":
        raise UserError(
            f"the scripts took more than {ended.memory / 1e9:.1f} GB of memory, half of what is "
            "free here; verify where there is more, or give a smaller model after `--`"
        )
    outcomes = _outcomes(told(state))
    if not outcomes and ended.why != "time":
        tail = said.read_bytes()[-2000:].decode("utf-8", "replace").strip()
        raise UserError(f"no script could be started here (exit code {ended.code}):\n{tail}")
    return outcomes


def _plan(job: Job, state: Path) -> Plan:
    project, runs = job.project, []
    for name, world in (("original", 0), *((str(one), one) for one in WORLDS), ("kill", 2)):
        folder = state / "runs" / name
        copies.make(project, folder)
        script = folder / (project.port if world else project.script)
        kill_at = KILL_AT if name == "kill" else 0
        runs.append(Run(name, str(script), str(folder), str(folder), world, kill_at))
    temporary = state / "tmp"
    temporary.mkdir()
    stand_ins = tuple(str(one.resolve()) for one in job.stand_ins)
    told(state).mkdir()
    return Plan(str(told(state)), str(temporary), job.args, stand_ins, job.seconds, tuple(runs))


def _watch(
    job: Job,
    plan: Plan,
    interrupt: Interrupt,
    out: int,
    tell: Callable[[str], None],
) -> Ended:
    state = Path(plan.state)
    settings = config.load(job.project.root)
    profile, _ = detect.choose(settings, os.environ, os.uname().nodename, cluster_name=lambda: None)
    known = caches(settings, profile, os.environ)
    own = environment.child(os.environ, known, state, Path(plan.temporary), 1, Path.home())
    package = str(Path(__file__).resolve().parents[3])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {
        **own,
        STATE: str(state),
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": str(Path(plan.temporary, "matplotlib")),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    shown: set[str] = set()

    def look() -> bool:
        for run in plan.runs:
            if run.name not in shown and (state / f"{run.name}-0.jsonl").exists():
                shown.add(run.name)
                tell(run.name)
        return False

    # The original may be tried in several ways.
    most = _STARTING + job.seconds * (len(plan.runs) + 3)
    return watch(
        alone.command([sys.executable, "-c", _CHILD], network=True),
        variables,
        Limits(most, default_memory()),
        interrupt,
        mark=str(state),
        look=look,
        stdout=out,
    )


def _outcomes(state: Path) -> tuple[Outcome, ...]:
    with suppress(OSError):
        found = json.loads((state / OUTCOMES).read_text(encoding="utf-8"))
        return tuple(outcome_from(one) for one in found)
    return ()


def _sweep(base: Path) -> None:
    """Remove what a process of this machine that was killed has left."""
    for folder in base.glob(f"{glob.escape(_prefix())}*"):
        number = folder.name.removeprefix(_prefix()).partition("-")[0]
        with suppress(OSError):
            ours = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
            if ours and number.isdigit() and not Path("/proc", number).exists():
                _remove(folder)


def _prefix() -> str:
    """Names the machine too: TMPDIR may lie on a disk of many, with process ids of their own."""
    return f"{_PREFIX}{platform.node()}-"


def _remove(folder: Path) -> None:
    """All of it, also what a script has made unreadable; links are not followed."""

    def again(function: Callable[[str], object], path: str, error: object) -> None:
        with suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                function(path)

    shutil.rmtree(folder, onerror=again)
