"""The report for a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

from rankup.monitor.diagnose import diagnose
from rankup.monitor.recording import Recording
from rankup.monitor.report.text import show, text

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
    whole = " ".join(" ".join(lines).split())
    assert "docs/findings" not in whole
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


def test_where_findings_are_explained() -> None:
    lines = of(sick()).splitlines()
    assert lines[-2] == "       what RK701 means: docs/findings/RK701.md"
    (one,) = diagnose(sick())
    two = (one, replace(one, code="RK704"))
    assert "what RK701, RK704 mean: docs/findings/\n" in text(sick(), two)


def test_lines_keep_the_width() -> None:
    width = 40
    for line in of(traces.crashed().recording(), width).splitlines():
        assert len(line) <= width or " " not in line.strip() or len(line.split()) <= 2, line


def test_colours_are_for_terminals() -> None:
    recording = sick()
    found = diagnose(recording)
    out, terminal = io.StringIO(), Terminal()
    show(recording, found, out, PAGE)
    assert out.getvalue() == of(recording)
    assert "\x1b" not in out.getvalue()
    show(recording, found, terminal)
    assert "\x1b[33mWARN" in terminal.getvalue()
    assert "\x1b[33mThree of four" in terminal.getvalue()


def test_hostile_names() -> None:
    recording = sick()
    evil = "\x1b[2J\x1b[31m<script>\r\nOK   everything is fine"
    facts = replace(recording.facts, name=evil, command=evil, run=evil, directory=evil, site=evil)
    heads = (replace(recording.heads[0], node=evil),)
    gpus = tuple(replace(gpu, name=evil) for gpu in recording.gpus)
    strange = replace(recording, facts=facts, heads=heads, gpus=gpus)
    whole = text(strange, diagnose(strange), more=evil)
    assert "\x1b" not in whole
    assert "\r" not in whole
    assert not any(line.startswith("OK   everything") for line in whole.splitlines())


def test_nothing_recorded() -> None:
    empty = made(nodes=0, gpus=0, bins=1, samples=0, facts={"gpus": 4, "attempts": ()})
    whole = of(empty)
    assert whole.startswith("Nothing was recorded of this run.")
    assert "\nmore   " in whole


def test_a_cpu_node_has_its_cores() -> None:
    assert "CPU    least" in of(traces.cpu_only().recording())
