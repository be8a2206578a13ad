"""The report's PDF, read back with poppler's tools."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from rankup.monitor import lines
from rankup.monitor.billing import cost
from rankup.monitor.diagnose import Diagnosis, Verdict, diagnose, verdict
from rankup.monitor.load import load
from rankup.monitor.recording import Facts, Recording
from rankup.monitor.report.pdf import pdf

from ..traces import Stay, cpu_only, healthy, one_of_four

A4 = (595.28, 841.89)  # points


def _made(recording: Recording, folder: Path, found: tuple[Diagnosis, ...] | None = None) -> Path:
    diagnoses = diagnose(recording) if found is None else found
    paid = cost(recording)
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


def _nothing_is_cut_or_overlaps(path: Path) -> None:
    command = ["pdftotext", "-bbox", str(path), "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    form = r'<word xMin="(.*?)" yMin="(.*?)" xMax="(.*?)" yMax="(.*?)">(.*?)</word>'
    for page, content in enumerate(done.stdout.split("<page ")[1:], 1):
        words = re.findall(form, content)
        boxes = np.array([word[:4] for word in words], float)
        left, top, right, bottom = boxes.T
        out = (left <= 20) | (top <= 20) | (right >= A4[0] - 20) | (bottom >= A4[1] - 10)
        beyond = [words[at][4] for at in np.flatnonzero(out)]
        assert not beyond, f"page {page}: words leave the page: {beyond}"
        # Ascenders and descenders of lines below one another may touch.
        shrink = 0.25 * (bottom - top)
        left, right = left + 0.5, right - 0.5
        top, bottom = top + shrink, bottom - shrink
        across = (left[:, None] < right[None]) & (left[None] < right[:, None])
        down = (top[:, None] < bottom[None]) & (top[None] < bottom[:, None])
        pairs = np.argwhere(np.triu(across & down, 1))
        said = [(words[a][4], words[b][4]) for a, b in pairs]
        assert not said, f"page {page}: words on top of one another: {said[:5]}"


@pytest.fixture(scope="module")
def one_used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user has set something in matplotlib, which neither changes it nor is changed."""
    own: dict[str, Any] = {"text.usetex": True, "font.size": 31, "axes.facecolor": "red"}
    with matplotlib.rc_context(own):
        before = dict(matplotlib.rcParams)
        path = _made(one_of_four().recording(), tmp_path_factory.mktemp("one"))
        assert dict(matplotlib.rcParams) == before
    return path


def test_the_first_page_is_enough_to_decide(one_used: Path) -> None:
    text = _text(one_used, 1)
    recording = one_of_four().recording()
    paid = cost(recording)
    assert paid.efficiency is not None
    for words in (
        *("train", "20251122-180000-abcd", "13815915", "RK701", "1 h 32 min"),
        *("NVIDIA A100-SXM4-40GB", "rankup run --nodes 1 train.py", "Over time"),
        f"{100 * paid.efficiency:.0f} %",
        "196 core-h",
        "jrc0001:3",
    ):
        assert words in text, words
    flat = " ".join(text.split())
    assert " ".join(paid.formula.split())[:40] in flat
    (line,) = re.findall(r"Pages: (.*)", text)
    for title, page in re.findall(r"([^·]+?) (\d+)(?: ·|$)", line):
        assert title.strip() in _text(one_used, int(page))


def test_it_is_a4_with_text_that_is_text_in_the_order_of_llview(one_used: Path) -> None:
    info = _info(one_used)
    assert info["Page size"] == "595.28 x 841.89 pts (A4)"
    assert info["Title"] == "rankup report: train"
    assert 4 <= int(info["Pages"]) <= 12
    assert one_used.stat().st_size < 1_000_000
    fonts = subprocess.run(["pdffonts", one_used], capture_output=True, text=True, check=True)
    assert "Type 3" not in fonts.stdout
    assert "DejaVuSans" in fonts.stdout
    _nothing_is_cut_or_overlaps(one_used)
    text = _text(one_used)
    sections = ("GPU", "CPU", "Memory", "I/O", "Network", "Steps and events", "Nodes")
    places = [re.search(rf"^[\f ]*{re.escape(title)}$", text, re.MULTILINE) for title in sections]
    found = [place.start() for place in places if place is not None]
    assert len(found) == len(sections)
    assert found == sorted(found)


@pytest.mark.slow
def test_a_run_without_gpus_that_began_again_and_goes_on(tmp_path: Path) -> None:
    stays = (Stay(0, 900, state="TIMEOUT"), Stay(1300, 2000, state="RUNNING", closed=False))
    path = _made(cpu_only().but(stays=stays, checkpoints=100).recording(), tmp_path)
    first = _text(path, 1)
    for words in (
        *("efficiency", "Over time", "still going on"),
        *("dashed: the run began again", "grey: nothing was sampled"),
    ):
        assert words in first
    assert "No GPU was recorded" in _text(path)
    _nothing_is_cut_or_overlaps(path)


def test_a_run_of_which_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / lines.FOLDER).mkdir()
    facts = Facts(run="r", name="", command="", directory=str(tmp_path))
    path = _made(load(tmp_path, facts), tmp_path)
    assert "No sample was recorded." in _text(path, 1)


@pytest.mark.slow
def test_names_from_elsewhere_are_text_and_long_tables_go_on(tmp_path: Path) -> None:
    hostile = r"$\frac{1}{0}$ <b>&amp; \x1b[31m" + "\x1b[2J\x00\u202e\n日本 \U00013000 %s {x}"
    trace = healthy(nodes=3, gpus=2, seconds=120).with_metrics(**{hostile: 1.0})
    recording = trace.recording(
        name=hostile, command=hostile * 30, account=hostile, partition=hostile
    )
    heads = [
        replace(head, node=f"a-rather-long-name-of-a-node-{n:04}.cluster.example.org")
        for n, head in enumerate(recording.heads)
    ]
    heads[0] = replace(heads[0], node=hostile + "y" * 90)
    long = "so long a line of what to change that it takes some more room than one has; " * 4
    said = [f"finding {n}: {hostile} {long}" for n in range(14)]
    found = tuple(
        Diagnosis("RK7$1$", "error", hostile, one, f"{hostile} " * 7, cost=12.5, unit=hostile[:12])
        for one in said
    )
    path = _made(replace(recording, heads=tuple(heads)), tmp_path, found)
    text, first = _text(path), _text(path, 1)
    assert r"$\frac{1}{0}$ <b>&amp;" in text
    assert r"\u65e5\u672c" in text
    assert r"\U00013000" in text
    assert not re.search(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202e]", text)
    assert text.count("RK7$1$") == 14
    assert len(set(re.findall(r"finding (\d+):", text))) == 14
    assert "more findings on the next page" in first
    assert "Over time" in first
    assert "More findings" in _text(path, 2)
    assert all(f"a-node-{n:04}" in text for n in range(1, 3))
    _nothing_is_cut_or_overlaps(path)
