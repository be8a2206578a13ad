"""The report of a run as one page: the verdict first, then all that led to it.

The page is one file that needs no network: template, style, scripts and data in one text. Its
Content-Security-Policy lets run what is in it, by hash, and nothing else, and lets it load and send
nothing: whatever a name in a recording holds, it stays text.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import time
from collections.abc import Sequence
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from numpy.typing import NDArray

from ...base.findings import Level
from ...base.text import clean
from .. import billing, words
from ..billing import Cost
from ..diagnose import CODES, Diagnosis, Verdict, not_judged, overlap
from ..recording import Recording, stretches
from . import job
from .curves import cores, curves, left_out, timeline
from .figures import Figure, milliseconds, row_of, sections, whole

LEVELS: dict[Level, str] = {"ok": "Good", "warning": "Warning", "error": "Problem"}
_CODE = re.compile(r"`([^`]+)`")


def html(recording: Recording, diagnoses: Sequence[Diagnosis], cost: Cost, verdict: Verdict) -> str:
    """Return the page: one file, without anything from a network."""
    drawn = sections(recording)
    progress = curves(recording)
    single = {one.id: one for one in (cores(recording), timeline(recording)) if one is not None}
    figures = [*(plot for section in drawn for plot in section.plots), *progress, *single.values()]
    brief = not_judged(verdict, diagnoses)
    gpu_plots = [plot for plot in figures if plot.of == "gpu"]
    return render(
        "run.html.j2",
        figures,
        {
            "begin": milliseconds(recording, recording.begin),
            "whole": whole(recording),
            "width": recording.width * 1000.0,
            "marks": [_mark(one, recording) for one in diagnoses],
        },
        title=f"{recording.facts.name or recording.facts.run}: rankup report",
        run=recording.facts,
        portal=portal(recording.facts.portal),
        verdict=verdict,
        level="brief" if brief else verdict.level,
        level_word="Not judged" if brief else LEVELS[verdict.level],
        as_of=job.stamp(recording.end) if billing.goes_on(recording) else "",
        findings=diagnoses,
        overlap=overlap(diagnoses),
        codes=CODES,
        levels={**LEVELS, "ok": "Note"},
        cost=cost,
        parts=_parts(cost),
        amount=words.amount,
        known_part=words.known_part,
        ran_for=words.duration(job.duration_of(recording)),
        size=_size(recording),
        queued="" if recording.facts.queued is None else words.duration(recording.facts.queued),
        facts=job.facts(recording),
        attempts=job.attempts_table(recording),
        nodes=job.node_table(recording),
        sections=drawn,
        summaries={one.section.id: job.summary(recording, one.plots) for one in drawn},
        gpu_table=job.gpu_table(recording, gpu_plots),
        fs_table=job.fs_table(recording),
        single=single,
        curves=progress,
        left_out=left_out(recording),
        events=job.event_table(recording),
        profiles=job.profile_tables(recording),
        several=any(1 < len(plot.average) <= 16 for plot in figures),
    )


def render(
    template: str, figures: Sequence[Figure], document: dict[str, Any], **context: Any
) -> str:
    """Return the text of a page.

    Args:
        template: its name in `page/`.
        document: what the page's script is given beside the figures.
        context: what the template shows; texts are escaped there.
    """
    drawn = [
        {"id": one.id, "of": one.of, "data": one.data, "layout": one.layout} for one in figures
    ]
    text = json.dumps(_plain({**document, "figures": drawn}), allow_nan=False)
    data = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
    script, plotly = f'"use strict";\n{_asset("page.js")}', _plotly()
    hashes = " ".join(f"'sha256-{_digest(one)}'" for one in (plotly, script))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template(template)
        .render(
            policy=policy,
            style=Markup(_asset("report.css")),  # noqa: S704 - our own files
            plotly=Markup(plotly),  # noqa: S704
            script=Markup(script),  # noqa: S704
            data=data,
            number=job.number,
            made=job.stamp(time.time()),
            **context,
        )
    )


def portal(url: str | None) -> str:
    """The link to the site's own report; empty for what is no web page."""
    try:
        parts = urlsplit(url or "")
    except ValueError:
        return ""
    return (url or "") if parts.scheme in ("http", "https") and parts.netloc else ""


def _mark(diagnosis: Diagnosis, recording: Recording) -> dict[str, Any] | None:
    """The place of a finding in the plots: stretches of time, and of rows by what has a row."""
    if not (diagnosis.windows or diagnosis.gpus or diagnosis.nodes):
        return None
    gpus = np.array(diagnosis.gpus, np.int64)
    of_gpus = recording.gpu_node[gpus]
    nodes = np.array(diagnosis.nodes, np.int64)
    things = {
        "gpu": gpus if len(gpus) else np.flatnonzero(np.isin(recording.gpu_node, nodes)),
        "host": nodes if len(nodes) else of_gpus,
        "rank": np.flatnonzero(np.isin(recording.rank_node, nodes)),
    }
    return {
        "windows": [
            [milliseconds(recording, begin), milliseconds(recording, end)]
            for begin, end in diagnosis.windows
        ],
        "rows": {of: _beside(row_of(recording, of)[place]) for of, place in things.items()},
    }


def _beside(rows: NDArray[np.int64]) -> list[list[int]]:
    """The first and the last of rows that lie beside one another."""
    marked = np.bincount(rows) > 0
    return [[first, last - 1] for first, last in stretches(marked)]


def _parts(cost: Cost) -> list[tuple[str, str, float, str]]:
    """Return the parts of the bill: used and wasted."""
    if cost.used is None or cost.wasted is None or not cost.billed:
        return []
    parts = (("did work", cost.used, "used"), ("wasted", cost.wasted, "lost"))
    return [(title, words.amount(units), units / cost.billed, kind) for title, units, kind in parts]


def _size(recording: Recording) -> str:
    nodes = len(recording.heads) or recording.facts.nodes
    text = words.plural(nodes, "node")
    per_node = recording.facts.gpus
    gpus = per_node * nodes if per_node is not None else len(recording.gpus)
    return f"{text}, {words.plural(gpus, 'GPU')}" if gpus else text


def _plain(value: Any) -> Any:
    """Return a form that JSON can hold: Plotly's typed arrays, no NaN or infinity elsewhere."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _table(value) if value.ndim == 2 else _array(value)
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _array(values: NDArray[Any]) -> dict[str, Any]:
    """Typed and in base64; of float32 the last 12 bits are cut, which hardly compress."""
    if values.dtype == np.float64:
        return {"dtype": "f8", "bdata": _base64(values.astype("<f8"))}
    bits = np.ascontiguousarray(values, "<f4").view("<u4") & np.uint32(0xFFFFF000)
    return {"dtype": "f4", "bdata": _base64(bits)}


def _table(values: NDArray[Any]) -> dict[str, Any]:
    """The cells of a heat map in 254 steps between the lowest and the highest; 255: no sample."""
    there = np.isfinite(values)
    low, high = (float(values[there].min()), float(values[there].max())) if there.any() else (0, 0)
    step = (high - low) / 254 or 1.0
    codes = np.where(there, np.rint((np.where(there, values, low) - low) / step), 255)
    rows = {"rows": len(values), "low": low, "step": step}
    return {"dtype": "u1", "bdata": _base64(codes.astype("u1")), **rows}


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()


def with_code(text: str) -> Markup:
    """HTML of a text in which `…` marks code; all of it escaped."""
    pieces = _CODE.split(clean(text))
    html = [
        Markup("<code>{}</code>").format(piece) if at % 2 else escape(piece)
        for at, piece in enumerate(pieces)
    ]
    return Markup("").join(html)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rankup.monitor.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = lambda value: clean(str(value))
    environment.filters["with_code"] = with_code
    return environment


def _asset(name: str) -> str:
    return resources.files("rankup.monitor.report").joinpath(f"page/{name}").read_text("utf-8")


def _plotly() -> str:
    """Plotly's JavaScript out of its Python package, without importing that."""
    spec = find_spec("plotly")
    assert spec is not None, "rankup depends on it"
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path.read_bytes().decode()


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
