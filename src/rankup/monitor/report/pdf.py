"""`report.pdf`: a run on A4 pages, the first of which is enough to decide."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ...base.files import replacing
from ..cost import Cost
from ..diagnose import Diagnosis
from ..recording import Recording
from ..verdict import Verdict


def pdf(
    recording: Recording,
    diagnoses: Sequence[Diagnosis],
    cost: Cost,
    verdict: Verdict,
    target: Path,
) -> None:
    """Write the report, the old one or the new one whole; no state of matplotlib is changed.

    Raises:
        OSError: it could not be written; `target` is as it was.
    """
    import matplotlib

    with matplotlib.rc_context():
        # What a user has set for his own figures (TeX, say) is not for this one.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"pdf.fonttype": 42, "axes.unicode_minus": False})
        _write(recording, diagnoses, cost, verdict, target)


def _write(
    recording: Recording,
    diagnoses: Sequence[Diagnosis],
    cost: Cost,
    verdict: Verdict,
    target: Path,
) -> None:
    from .plots import sections
    from .sheets import body, first
    from .sheets.fonts import written
    from .sheets.sheet import BOTTOM, HEIGHT, Document

    facts = recording.facts
    name = written(facts.name or facts.run)
    document = Document(f"{name} · {written(facts.run)}")
    drawn = sections(recording)
    first.title(document, recording, f"made {time.strftime('%Y-%m-%d %H:%M %Z')}")
    first.headline(document, verdict, recording.running)
    first.facts_and_cost(document, recording, cost)
    small = first.are_many(document, diagnoses)
    shown = first.findings(document, diagnoses)
    first.overview(document, recording, drawn, small=small)
    first.gpus(document, recording, drawn, document.left - 16)
    document.new_page()
    body.other_findings(document, diagnoses[shown:])
    for one in drawn:
        body.section(document, recording, one)
    body.training(document, recording)
    body.facts(document, recording)
    body.tables(document, recording, drawn)
    body.contents(document, 0, HEIGHT - BOTTOM + 4)
    metadata = {"Title": f"rankup report: {name}", "Creator": "rankup", "Subject": facts.run}
    with replacing(target, private=True) as file:  # it has the command with its arguments
        document.save(file, metadata)
