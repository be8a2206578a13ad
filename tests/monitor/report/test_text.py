"""The report for a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from rankup.monitor.cost import cost
from rankup.monitor.diagnose import diagnose
from rankup.monitor.recording import Recording
from rankup.monitor.report.text import show, text
from rankup.monitor.verdict import verdict

from .. import traces
from ..diagnose.sick import run
from ..handmade import made, per_gpu


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


PAGE = "/p/scratch/run/report.html"


def of(recording: Recording, width: int = 80) -> str:
    return text(recording, diagnose(recording), width, PAGE)


def sick() -> Recording:
    channels = {name: per_gpu(name, 1) for name in ("util", "power", "memory", "processes")}
    return made(ranks=1, **channels)


def test_a_healthy_run_takes_about_ten_lines() -> None:
    lines = of(run().recording()).splitlines()
    assert lines[0].startswith("Healthy: ")
    assert len(lines) <= 16
    assert lines[-1] == f"more   {PAGE}"
    assert "docs/findings" not in "".join(lines)


def test_the_formula_stands_beside_the_number() -> None:
    whole = " ".join(of(run().recording()).split())
    assert "efficiency 95 % = mean over all billed GPU time of min(use, (power/limit" in whole
    assert "core-h" in whole


def test_findings_with_their_codes_and_what_to_do() -> None:
    whole = of(sick())
    assert "WARN   [RK701] GPUs 1-3 of jrc0001" in whole
    assert "-> to use all of it" in whole


def test_where_no_page_is_written_none_is_named() -> None:
    recording = run().recording()
    assert "more" not in text(recording, ())
    out = io.StringIO()
    show(recording, (), out)
    assert "more" not in out.getvalue()


def test_what_is_known_already_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = sick()
    found = diagnose(recording)
    paid = cost(recording, found)
    said = verdict(recording, found, paid)
    whole = text(recording, found)
    for name in ("cost", "verdict"):
        monkeypatch.delattr(f"rankup.monitor.report.text.{name}")
    assert text(recording, found, paid=paid, said=said) == whole


def test_where_findings_are_explained() -> None:
    lines = of(sick()).splitlines()
    assert lines[-2] == "       what RK701 means: docs/findings/RK701.md"
    (one,) = diagnose(sick())
    two = (one, replace(one, finding=replace(one.finding, code="RK704")))
    assert "what RK701, RK704 mean: docs/findings/\n" in text(sick(), two)


def test_a_headline_of_two_lines_has_one_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    recording = sick()
    show(recording, diagnose(recording), out, PAGE)
    first, second, _ = out.getvalue().split("\n", 2)
    assert first.startswith("\x1b[33mThree of four")
    assert second.startswith("\x1b[33m")
    assert second.endswith("wasted.\x1b[0m")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_keep_the_width(width: int) -> None:
    for line in of(traces.crashed().recording(), width).splitlines():
        assert len(line) <= width or " " not in line.strip() or len(line.split()) <= 2, line


def test_no_colours_in_a_file() -> None:
    out = io.StringIO()
    recording = sick()
    show(recording, diagnose(recording), out, PAGE)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue() == of(recording)


def test_colours_on_a_terminal() -> None:
    out = Terminal()
    recording = sick()
    show(recording, diagnose(recording), out)
    assert "\x1b[33mWARN" in out.getvalue()
    assert "\x1b[33mThree of four" in out.getvalue()


def test_hostile_names() -> None:
    recording = sick()
    evil = "\x1b[2J<script>\r\nOK   everything is fine"
    facts = replace(recording.facts, name=evil, command=evil, run=evil, directory=evil, site=evil)
    heads = (replace(recording.heads[0], node=evil),)
    gpus = tuple(replace(gpu, name=evil) for gpu in recording.gpus)
    strange = replace(recording, facts=facts, heads=heads, gpus=gpus)
    whole = text(strange, diagnose(strange), page=evil)
    assert "\x1b" not in whole
    assert "\r" not in whole
    assert not any(line.startswith("OK   everything") for line in whole.splitlines())


def test_nothing_recorded() -> None:
    empty = made(nodes=0, gpus=0, bins=1, samples=0, facts={"gpus": 4, "lives": ()})
    whole = of(empty)
    assert whole.startswith("Nothing was recorded of this run.")
    assert "\nmore   " in whole


def test_a_cpu_node_has_its_cores() -> None:
    assert "CPU    least" in of(traces.cpu_only().recording())
