"""The report's PDF, read back with poppler's tools."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from rankup.base.findings import Finding
from rankup.monitor import lines
from rankup.monitor.cost import cost
from rankup.monitor.diagnose import Diagnosis, diagnose
from rankup.monitor.load import load
from rankup.monitor.recording import Facts, Recording
from rankup.monitor.report.pdf import pdf
from rankup.monitor.verdict import Verdict, verdict

from ..traces import Trace, cpu_only, crashed, healthy, one_of_four, running, short, two_lives

A4 = (595.28, 841.89)  # points


def _made(recording: Recording, folder: Path, found: tuple[Diagnosis, ...] | None = None) -> Path:
    diagnoses = diagnose(recording) if found is None else found
    paid = cost(recording, diagnoses)
    said = verdict(recording, diagnoses) if found is None else _said(found[0])
    pdf(recording, diagnoses, paid, said, folder / "report.pdf")
    return folder / "report.pdf"


def _said(worst: Diagnosis) -> Verdict:
    """A verdict on findings that no rule makes."""
    return Verdict(worst.message, (worst.todo,), worst.level)


def _text(path: Path, page: int | None = None) -> str:
    pages = [] if page is None else ["-f", str(page), "-l", str(page)]
    command = ["pdftotext", "-layout", *pages, str(path), "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


def _info(path: Path) -> dict[str, str]:
    done = subprocess.run(["pdfinfo", path], capture_output=True, text=True, check=True)
    return dict(re.findall(r"^([^:]+): +(.*)$", done.stdout, re.MULTILINE))


def _boxes(path: Path, page: int) -> list[tuple[float, float, float, float, str]]:
    """Each word with its box: left, top, right, bottom."""
    command = ["pdftotext", "-bbox", "-f", str(page), "-l", str(page), str(path), "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    form = r'<word xMin="(.*?)" yMin="(.*?)" xMax="(.*?)" yMax="(.*?)">(.*?)</word>'
    found = re.findall(form, done.stdout)
    return [(float(a), float(b), float(c), float(d), word) for a, b, c, d, word in found]


def _nothing_is_cut_or_overlaps(path: Path) -> None:
    for page in range(1, int(_info(path)["Pages"]) + 1):
        words = _boxes(path, page)
        for left, top, right, bottom, word in words:
            inside = left > 20 and top > 20 and right < A4[0] - 20 and bottom < A4[1] - 10
            assert inside, f"page {page}: {word!r} leaves the page"
        boxes = np.array([word[:4] for word in words])
        # Ascenders and descenders of lines below one another may touch.
        shrink = 0.25 * (boxes[:, 3] - boxes[:, 1])
        left, right = boxes[:, 0] + 0.5, boxes[:, 2] - 0.5
        top, bottom = boxes[:, 1] + shrink, boxes[:, 3] - shrink
        across = (left[:, None] < right[None]) & (left[None] < right[:, None])
        down = (top[:, None] < bottom[None]) & (top[None] < bottom[:, None])
        pairs = np.argwhere(np.triu(across & down, 1))
        said = [(words[a][4], words[b][4]) for a, b in pairs]
        assert not said, f"page {page}: words on top of one another: {said[:5]}"


@pytest.fixture(scope="module")
def one_used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _made(one_of_four().recording(), tmp_path_factory.mktemp("one"))


def test_the_first_page_is_enough_to_decide(one_used: Path) -> None:
    text = _text(one_used, 1)
    diagnoses = diagnose(recording := one_of_four().recording())
    paid = cost(recording, diagnoses)
    assert paid.efficiency is not None
    for words in (
        *("train", "20251122-180000-abcd", "13815915", "RK701", "1 h 32 min"),
        *("NVIDIA A100-SXM4-40GB", "rankup run --nodes 1 train.py", "Over time"),
        f"{100 * paid.efficiency:.0f} %",
        "196 core-h",
        "The 4 GPUs",
        "jrc0001:3",
    ):
        assert words in text, words
    flat = " ".join(text.split())
    assert " ".join(paid.formula.split())[:40] in flat


def test_it_is_a4_with_text_that_is_text(one_used: Path) -> None:
    info = _info(one_used)
    assert info["Page size"] == "595.28 x 841.89 pts (A4)"
    assert info["Title"] == "rankup report: train"
    assert 4 <= int(info["Pages"]) <= 12
    assert one_used.stat().st_size < 1_000_000
    fonts = subprocess.run(["pdffonts", one_used], capture_output=True, text=True, check=True)
    assert "Type 3" not in fonts.stdout
    assert "DejaVuSans" in fonts.stdout
    _nothing_is_cut_or_overlaps(one_used)


def test_the_order_is_llviews(one_used: Path) -> None:
    text = _text(one_used)
    sections = ("GPU", "CPU", "Memory", "I/O", "Network", "Steps and events", "Nodes")
    places = [re.search(rf"^[\f ]*{re.escape(title)}$", text, re.MULTILINE) for title in sections]
    found = [place.start() for place in places if place is not None]
    assert len(found) == len(sections)
    assert found == sorted(found)


def test_each_number_of_the_contents_is_right(one_used: Path) -> None:
    (line,) = re.findall(r"Pages: (.*)", _text(one_used, 1))
    for title, page in re.findall(r"([^·]+?) (\d+)(?: ·|$)", line):
        assert title.strip() in _text(one_used, int(page))


@pytest.mark.parametrize("make", [cpu_only, crashed, running, two_lives, healthy])
def test_every_kind_of_run_has_a_report(make: Callable[[], Trace], tmp_path: Path) -> None:
    path = _made(make().recording(), tmp_path)
    first = _text(path, 1)
    assert "efficiency" in first
    assert "Over time" in first
    if make is running:
        assert "still going on" in first
    if make is two_lives:
        assert "dashed: the run began again" in first
        assert "grey: nothing was sampled" in first
    if make is cpu_only:
        assert "No GPU was recorded" in _text(path)
    _nothing_is_cut_or_overlaps(path)


def test_a_run_of_which_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / lines.FOLDER).mkdir()
    facts = Facts(run="r", name="", command="", directory=str(tmp_path))
    path = _made(load(tmp_path, facts), tmp_path)
    assert "No sample was recorded." in _text(path, 1)


def test_names_from_elsewhere_are_text(tmp_path: Path) -> None:
    hostile = r"$\frac{1}{0}$ <b>&amp; \x1b[31m" + "\x1b[2J\x00\u202e\n日本 \U00013000 %s {x}"
    trace = healthy(seconds=300, heads={"node": hostile + "y" * 90}).with_metrics(**{hostile: 1.0})
    facts = trace.facts(name=hostile, command=hostile * 30, account=hostile, partition=hostile)
    recording = trace.recording(**vars(facts))
    todo = f"{hostile} " * 40
    finding = Finding("RK7$1$", "error", hostile, f"{hostile} " * 9, todo)
    found = tuple(Diagnosis(finding, 12.5, hostile[:12]) for _ in range(9))
    path = _made(recording, tmp_path, found)
    text = _text(path)
    assert r"$\frac{1}{0}$ <b>&amp;" in text
    assert r"\u65e5\u672c" in text
    assert r"\U00013000" in text
    assert not re.search(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202e]", text)
    assert text.count("RK7$1$") == 9
    _nothing_is_cut_or_overlaps(path)


def test_many_findings_go_on_on_the_next_page(tmp_path: Path) -> None:
    recording = healthy(seconds=600).recording()
    long = "so long a line of what to change that it takes some more room than one has; " * 4
    found = tuple(
        Diagnosis(Finding(f"RK7{n:02}", "warning", "here", f"finding {n}: {long}", long), 1.0, "u")
        for n in range(14)
    )
    path = _made(recording, tmp_path, found)
    first, second = _text(path, 1), _text(path, 2)
    assert "more findings on the next page" in first
    assert "Over time" in first
    assert "More findings" in second
    assert len(set(re.findall(r"finding (\d+):", _text(path)))) == 14
    _nothing_is_cut_or_overlaps(path)


def test_many_nodes_with_long_names(tmp_path: Path) -> None:
    trace = Trace(nodes=80, seconds=120, metrics=None)
    recording = trace.recording()
    heads = tuple(
        replace(head, node=f"a-rather-long-name-of-a-node-{n:04}.cluster.example.org")
        for n, head in enumerate(recording.heads)
    )
    path = _made(replace(recording, heads=heads), tmp_path)
    text = _text(path)
    assert all(f"a-node-{n:04}" in text for n in range(80))
    assert "least used of 320 GPUs" in _text(path, 1)
    _nothing_is_cut_or_overlaps(path)


def test_nothing_of_matplotlib_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what a user has set there change the report, here that of a short run."""
    recording = short().recording()
    settings: dict[str, Any] = {"text.usetex": True, "font.size": 31, "axes.facecolor": "red"}
    for name, value in settings.items():
        monkeypatch.setitem(matplotlib.rcParams, name, value)
    before = dict(matplotlib.rcParams)
    path = _made(recording, tmp_path)
    assert dict(matplotlib.rcParams) == before
    first = _text(path, 1)
    assert "efficiency" in first
    assert "Over time" in first
    _nothing_is_cut_or_overlaps(path)


def test_the_old_report_stays_where_the_new_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankup.monitor.report.sheets import sheet

    target = tmp_path / "report.pdf"
    target.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sheet.PdfPages, "savefig", full)
    with pytest.raises(OSError, match="No space"):
        _made(short().recording(), tmp_path)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.pdf"]
