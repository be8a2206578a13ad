"""`rankup report`: load what was recorded, say what it means, and write it down."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TextIO

from ..base.errors import EXIT_FAILED, UserError, nearest
from ..base.files import user_path, write_atomic
from ..base.findings import Finding
from ..base.text import clean
from ..monitor import words
from ..monitor.diagnose import Diagnosis, diagnose
from ..monitor.export import FORMS, need
from ..monitor.load import load
from ..monitor.recording import Recording
from ..monitor.verdict import Cost, Verdict, cost, verdict
from ..site import config
from ..slurm.client import Client
from . import attempts, facts, meant

# The nodes of a job are billed as long as its end takes; the page is drawn where it is asked for.
AT_THE_END = ("text",)
EXPORTS = {"csv": "samples", "parquet": "samples", "openmetrics": "metrics.prom"}
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
    """What `rankup report` is to write.

    Attributes:
        formats: of `FILES`.
        export: of `monitor.export.FORMS`.
        out: a folder instead of the run directory; for several runs the current one without.
        ended: the code a job ends with, which asks for its own report.
    """

    formats: tuple[str, ...] = tuple(FILES)
    export: tuple[str, ...] = ()
    out: str | None = None
    as_json: bool = False
    ended: int | None = None


def show(runs: Sequence[str], wish: Wish) -> int:
    """Report about one run, or compare several; the exit code.

    Raises:
        UserError: there is no such run, or the report cannot be written where it was asked for.
    """
    _refuse(runs, wish)
    here, warning = config.for_views(Path.cwd())
    if warning:
        print(f"warning: {clean(warning)}", file=sys.stderr)
    client = Client(timeout=attempts.TIMEOUT)
    judged = [_judged(run, here, client, wish.ended) for run in runs]
    folders = [one.folder for one in judged]
    if twice := next((one for one in folders if folders.count(one) > 1), None):
        raise UserError(f"{twice} is named twice; name two runs to compare them, or one RUN")
    if len(judged) > 1:
        return _compare(judged, wish)
    if wish.as_json:
        print(json.dumps(_as_json(judged[0]), indent=2))
        return 0
    return tell(judged[0], wish, sys.stdout)


def judge(folder: Path, known: facts.Facts) -> Judged:
    """Load and judge what is in a run's folder."""
    recording = load(folder, known)
    diagnoses = diagnose(recording)
    price = cost(recording, diagnoses)
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
    for form in wish.export:
        from ..monitor.export import export

        name = EXPORTS.get(form, form)
        place = target / name
        yield name, partial(export, judged.recording, judged.folder, form, place)


def _refuse(runs: Sequence[str], wish: Wish) -> None:
    """UserError for what cannot be written, before anything is."""
    if unknown := [name for name in wish.formats if name not in FILES]:
        raise UserError(
            f"--formats {unknown[0]}: it takes {', '.join(FILES)}, with commas between them"
        )
    if unknown := [name for name in wish.export if name not in FORMS]:
        raise UserError(f"--export {unknown[0]}: {nearest(unknown[0], FORMS)}")
    if not wish.formats and not wish.as_json:
        raise UserError(f"--formats names none; it takes {', '.join(FILES)}")
    if wish.export and len(runs) > 1:
        raise UserError("--export writes the samples of one run; name one RUN")
    if len(runs) > 1 and not {"html", "text"} & set(wish.formats):
        raise UserError("several runs are compared in html and text; --formats html,text")
    target = _target(wish, Path.cwd())
    if target.exists() and not target.is_dir():
        raise UserError(f"--out {wish.out} is a file; name a folder")
    for form in wish.export:
        need(form)


def _judged(run: str, here: config.Config, client: Client, ended: int | None) -> Judged:
    given = user_path(run, "RUN")
    if meant.bare(given):  # of a sampler that was started by hand, or that played a recording
        return judge(given.resolve(), facts.bare(given.resolve()))
    path, task = meant.locate(here.runs, run, client)
    tasks = sorted(one.name for one in path.glob("array/*") if one.is_dir())
    if task is None and tasks:
        raise UserError(
            f"{run} is an array, each task of which is a run of its own; name one: "
            f"{path / 'array' / tasks[0]} (there are {', '.join(tasks)})"
        )
    return judge(meant.folder(path, task), facts.facts(path, task, here, client, ended))


def _compare(judged: Sequence[Judged], wish: Wish) -> int:
    from ..monitor.report.scaling import scaling, scaling_text
    from ..monitor.report.scaling_page import scaling_html

    parts = [(one.recording, one.diagnoses, one.cost, one.verdict) for one in judged]
    found = scaling([one.recording for one in judged])
    if wish.as_json:
        print(json.dumps(asdict(found), indent=2))
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
