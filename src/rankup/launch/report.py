"""`rankup report`: load what was recorded, say what it means, and write it down.

What it says of a run beside its samples comes from `job.json`, our own records and Slurm.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TextIO

from ..base import secrets
from ..base.errors import EXIT_FAILED, UserError
from ..base.files import user_path, write_atomic
from ..base.findings import Finding
from ..base.text import clean, json_text
from ..monitor import words
from ..monitor.billing import Cost, cost
from ..monitor.diagnose import Diagnosis, Verdict, diagnose, not_judged, verdict
from ..monitor.lines import FOLDER
from ..monitor.load import load
from ..monitor.recording import Facts, Recording
from ..site import rundir
from ..site.config import Config
from ..site.rundir import Job
from ..slurm.client import Client
from . import attempts, meant, status
from .attempts import Attempt

# The nodes of a job are billed as long as its end takes; the page is drawn where it is asked for.
AT_THE_END = ("text",)
FILES = {"html": "report.html", "pdf": "report.pdf", "text": "report.txt"}


@dataclass(frozen=True)
class Judged:
    """A run that was looked at: what was recorded and what that means."""

    folder: Path
    recording: Recording
    diagnoses: tuple[Diagnosis, ...]
    cost: Cost
    verdict: Verdict


@dataclass(frozen=True)
class Wish:
    """The parts that `rankup report` is to write.

    Attributes:
        formats: of `FILES`.
        out: a folder instead of the run directory; for several runs the current one without.
        ended: the code a job ends with, which asks for its own report.
    """

    formats: tuple[str, ...] = tuple(FILES)
    out: str | None = None
    as_json: bool = False
    ended: int | None = None


def show(runs: Sequence[str], wish: Wish) -> int:
    """Report about one run, or compare several; the exit code.

    Raises:
        UserError: there is no such run, or the report cannot be written where it was asked for.
    """
    _refuse(runs, wish)
    here, client = meant.here()
    judged = [_judged(run, here, client, wish.ended) for run in runs]
    folders = [one.folder for one in judged]
    if twice := next((one for one in folders if folders.count(one) > 1), None):
        raise UserError(f"{twice} is named twice; name two runs to compare them, or one RUN")
    if len(judged) > 1:
        return _compare(judged, wish)
    if wish.as_json:
        print(json_text(_as_json(judged[0])))
        return 0
    return tell(judged[0], wish, sys.stdout)


def judge(folder: Path, known: Facts) -> Judged:
    """Load and judge what is in a run's folder."""
    recording = load(folder, known)
    diagnoses = diagnose(recording)
    price = cost(recording)
    return Judged(folder, recording, diagnoses, price, verdict(recording, diagnoses, price))


def tell(judged: Judged, wish: Wish, out: TextIO) -> int:
    """Print the report in a few lines, then write its files; the exit code.

    The lines need no disk: a full one, often the cause of a failure itself, does not hide them.
    """
    from ..monitor.report.text import show as show_text

    target = _target(wish, judged.folder)
    recording, diagnoses = judged.recording, judged.diagnoses
    more = f"rankup report {words.argument(recording.facts)} draws the page and the PDF"
    if "html" in wish.formats:
        more = str(target / FILES["html"])
    if wish.ended is not None and not_judged(judged.verdict, diagnoses):
        # What ran for seconds, as a try does, ends without a page of figures that mean nothing.
        print(clean(judged.verdict.headline), clean(more), sep="\n", file=out)
        return _write(_files(judged, wish, target, more), target, io.StringIO())
    show_text(recording, diagnoses, out, more, paid=judged.cost, said=judged.verdict)
    return _write(_files(judged, wish, target, more), target, out)


def _target(wish: Wish, otherwise: Path) -> Path:
    return otherwise if wish.out is None else user_path(wish.out, "--out")


def _write(files: Iterable[tuple[str, Callable[[], object]]], target: Path, out: TextIO) -> int:
    """Write files by name, each by itself; the exit code."""
    written, failed = [], 0
    for name, make in files:
        try:
            target.mkdir(parents=True, exist_ok=True)
            make()
            written.append(name)
        except OSError as error:  # noqa: PERF203 - one that fails does not keep the others
            failed = EXIT_FAILED
            why = error.strerror or str(error)
            print(clean(f"{target / name} could not be written: {why}"), file=sys.stderr)
    if written:
        print(f"{', '.join(written)} in {clean(str(target))}", file=out)
    return failed


def _files(
    judged: Judged, wish: Wish, target: Path, more: str
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Names of the files that are wished for, and what writes each, as it was before or whole."""
    parts = (judged.recording, judged.diagnoses, judged.cost, judged.verdict)

    def html() -> None:
        from ..monitor.report.html import html

        write_atomic(target / FILES["html"], html(*parts), private=True)

    def pdf() -> None:
        from ..monitor.report.pdf import pdf

        pdf(*parts, target / FILES["pdf"])

    def text() -> None:
        from ..monitor.report.text import text

        lines = text(*parts[:2], more=more, paid=judged.cost, said=judged.verdict)
        write_atomic(target / FILES["text"], lines, private=True)

    makers = {"html": html, "pdf": pdf, "text": text}
    yield from ((FILES[name], makers[name]) for name in FILES if name in wish.formats)


def _refuse(runs: Sequence[str], wish: Wish) -> None:
    """UserError for what cannot be written, before anything is."""
    if unknown := [name for name in wish.formats if name not in FILES]:
        raise UserError(
            f"--formats {unknown[0]}: it takes {', '.join(FILES)}, with commas between them"
        )
    if not wish.formats and not wish.as_json:
        raise UserError(f"--formats names none; it takes {', '.join(FILES)}")
    if len(runs) > 1 and not {"html", "text"} & set(wish.formats):
        raise UserError("several runs are compared in html and text; --formats html,text")
    target = _target(wish, Path.cwd())
    if target.exists() and not target.is_dir():
        raise UserError(f"--out {wish.out} is a file; name a folder")


def _judged(run: str, here: Config, client: Client, ended: int | None) -> Judged:
    given = user_path(run, "RUN")
    if meant.bare(given):  # of a sampler that was started by hand, or that played a recording
        return judge(given.resolve(), bare(given.resolve()))
    path = meant.locate(here.runs, run, client)
    known = facts(path, here, client, ended)
    if not known.attempts and not (path / FOLDER).is_dir():
        last = attempts.newest(attempts.of_run(path, rundir.read(path), client)) or attempts.NEW
        raise UserError(f"{known.run} has not run: {last.words} There is nothing to report yet")
    return judge(path, known)


def _compare(judged: Sequence[Judged], wish: Wish) -> int:
    from ..monitor.report.scaling import scaling, scaling_text
    from ..monitor.report.scaling_page import scaling_html

    parts = [(one.recording, one.diagnoses, one.cost, one.verdict) for one in judged]
    found = scaling([one.recording for one in judged])
    if wish.as_json:
        print(json_text(asdict(found)))
        return 0
    said = scaling_text(found).rstrip("\n") + "\n"
    print(said, end="")
    target = _target(wish, Path.cwd())

    def html() -> None:
        write_atomic(target / "scaling.html", scaling_html(parts), private=True)

    makers = {
        "html": ("scaling.html", html),
        "text": ("scaling.txt", lambda: write_atomic(target / "scaling.txt", said, private=True)),
    }
    return _write((makers[form] for form in makers if form in wish.formats), target, sys.stdout)


def _as_json(judged: Judged) -> dict[str, object]:
    findings = []
    for one in map(asdict, judged.diagnoses):
        general = {field.name: one.pop(field.name) for field in fields(Finding)}
        findings.append({"finding": general, **one})
    return {
        "run": judged.recording.facts.run,
        "verdict": asdict(judged.verdict),
        "cost": asdict(judged.cost),
        "findings": findings,
    }


def facts(path: Path, config: Config, client: Client, ended: int | None = None) -> Facts:
    """Of the run in `path`.

    Args:
        ended: exit code of the newest attempt, which Slurm still calls running as it asks for this.

    Raises:
        UserError: `job.json` is missing or damaged.
    """
    job = rundir.read(path)
    if ended is not None:
        client = attempts.NO_SLURM
    found = attempts.of_run(path, job, client)
    bill = _bill(job)
    known = [attempt for attempt in found if attempt.started is not None]
    if ended is not None and known and known[-1].ended is None:
        state = "FAILED" if ended else "COMPLETED"
        known[-1] = replace(known[-1], live=False, ended=time.time(), state=state, words="")
    last = job.attempts[-1] if job.attempts else {}
    return Facts(
        run=job.id,
        name=job.name,
        command=_command(job),
        directory=str(path),
        kind=job.kind,
        site=bill.get("site", ""),
        partition=bill.get("partition", ""),
        account=bill.get("account", ""),
        nodes=last.get("nodes") or 1,
        ranks=last.get("nproc"),
        gpus=bill.get("gpus"),
        unit=bill.get("unit"),
        per_node_hour=bill.get("per_node_hour"),
        attempts=tuple(known),
        queued=_queued(job, found),
        portal=_link(status.monitoring(found, config)),
        what=_what(job),
    )


def bare(path: Path) -> Facts:
    """Of a folder that holds a recording alone: nobody knows more than its files."""
    return Facts(run=path.name, name=path.name, command="", directory=str(path))


def _bill(job: Job) -> Mapping[str, Any]:
    """Return the machine and price that the newest attempt with a bill was written with."""
    for attempt in reversed(job.attempts):
        if bill := attempt.get("bill"):
            return dict(bill)
    return {}


def _queued(job: Job, found: Sequence[Attempt]) -> float | None:
    """Seconds from what was submitted to the first attempt of each job; None: never in a queue."""
    submitted = {
        attempt["job"]: rundir.moment(attempt.get("submitted"))
        for attempt in job.attempts
        if "job" in attempt
    }
    waits = []
    for number, when in submitted.items():
        starts = [attempt.started for attempt in found if attempt.job == number]
        began = min((start for start in starts if start is not None), default=None)
        if when is not None and began is not None:
            waits.append(max(0.0, began - when))
    return sum(waits) if waits else None


def _command(job: Job) -> str:
    """As it was typed at first and at the newest start, or what came to the same; no secrets."""
    typed = [
        shlex.join(secrets.without(words, os.environ))
        for attempt in job.attempts
        if (words := attempt.get("command"))
    ]
    if typed:
        return "; then ".join(dict.fromkeys((typed[0], typed[-1])))
    nodes = job.launch.get("nodes")
    options = [] if nodes is None else ["--nodes", str(nodes)]
    last = job.attempts[-1] if job.attempts else {}
    if (ranks := last.get("nproc")) is not None:
        options += ["--nproc", str(ranks)]
    words = ["rankup", "run", *options, *job.words]
    return shlex.join(secrets.without(words, os.environ))


def _what(job: Job) -> dict[str, str]:
    found = {name: str(value) for name, value in job.versions.items()}
    if commit := job.git.get("commit"):
        found["git"] = str(commit)[:12] + (" and changes since" if job.git.get("changed") else "")
    return found


def _link(text: str) -> str | None:
    address = text.partition(" ")[0]
    return address if address.startswith(("https://", "http://")) else None
