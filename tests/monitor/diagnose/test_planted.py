"""Every planted cause is found, and nothing beside it; what is just not enough is not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import pytest

from rankup.base.findings import Level
from rankup.monitor import lines
from rankup.monitor.diagnose import CODES, Diagnosis, Verdict, diagnose, verdict
from rankup.monitor.load import load
from rankup.monitor.recording import Recording
from rankup.monitor.report.text import text

from ..handmade import made
from ..trace import Silence
from ..traces import level
from .pages import is_the_page
from .sick import Case, cases, of_one, run

ALL = cases()
FIRST = {case.code: case for case in reversed(ALL) if case.expected == (case.code,)}


@pytest.fixture(scope="module", autouse=True)
def utc() -> Iterator[None]:
    """Pages say times of day as they are in UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def _again(case: Case) -> bool:
    """True where a finding is found in another shape than the first: in the slow suite alone."""
    return bool(case.expected) and FIRST[case.code] is not case


def _example(recording: Recording, found: Sequence[Diagnosis]) -> str:
    """A finding as the report prints it."""
    bare = Verdict("", ("",), "ok")  # a headline may say the same, and then it stands there alone
    printed = text(recording, found, 100, said=bare)
    return printed[printed.index(f"[{found[0].code}]") - 7 :].partition("       what RK7")[0]


@pytest.mark.parametrize(
    "case",
    [pytest.param(one, marks=[pytest.mark.slow] * _again(one)) for one in ALL],
    ids=lambda case: f"{case.code}: {case.name}",
)
def test_planted(case: Case) -> None:
    """The first of each code has a headline, and is the example on the code's page.

    `RANKUP_GOLDEN=write` writes the pages anew.
    """
    recording = case.trace.recording()
    found = diagnose(recording)
    said = [f"{one.code} {one.message}" for one in found]
    assert tuple(sorted(one.code for one in found)) == tuple(sorted(case.expected)), said
    if FIRST[case.code] is case:
        (one,) = found
        is_the_page(case.code, _example(recording, found))
        whole = verdict(recording, found)
        assert whole.headline.endswith(".")
        assert not whole.headline.startswith("Healthy")
        assert whole.level == one.level
        assert whole.level in get_args(Level)
        assert 2 <= len(whole.sentences) <= 4


def test_every_code_is_planted() -> None:
    assert set(FIRST) == set(CODES)


@pytest.mark.slow
def test_planted_whatever_the_noise() -> None:
    for case in ALL:
        found = diagnose(case.trace.but(seed=1).recording())
        assert tuple(sorted(one.code for one in found)) == tuple(sorted(case.expected)), case.name


def test_gpus_that_are_missing_alike_are_one_finding() -> None:
    recording = made(nodes=3, gpus=0, heads={"gpu_error": "no driver"}, facts={"gpus": 4})
    (one,) = [one for one in diagnose(recording) if one.code == "RK723"]
    assert one.nodes == (0, 1, 2)
    assert one.message == "no node of the run has a GPU that can be read: no driver"
    assert "--exclude" not in one.todo, "there is no node without the fault"


@pytest.mark.parametrize(("usable", "said"), [(48, False), (2, True)])
def test_whole_nodes_are_not_advised_to_a_job_that_has_them(usable: int, said: bool) -> None:
    heads = {"usable": tuple(range(usable)), "environment": {"SRUN_CPUS_PER_TASK": "48"}}
    trace = run(heads=heads).with_host(load=level(90, 1), cpu=level(9 if usable == 48 else 99, 0.5))
    (one,) = [one for one in diagnose(trace.recording()) if one.code == "RK710"]
    assert ("--sbatch=--exclusive" in one.todo) is said


def _tables(directory: Path, kind: str) -> list[Path]:
    return sorted((directory / lines.FOLDER).glob(f"*{lines.ending(kind)}"))


@pytest.mark.parametrize("kind", ["gpu", "host"])
def test_a_damaged_row_hides_nothing(tmp_path: Path, kind: str) -> None:
    trace = run(nodes=2).with_gpu(util=of_one(0, 0, 97), power=of_one(0, 60, 390))
    for table in _tables(trace.write(tmp_path), kind)[:1]:
        rows = table.read_text().splitlines(keepends=True)
        table.write_text("".join([*rows[:50], "176\n", *rows[50:]]))
    recording = load(tmp_path, trace.facts())
    found = diagnose(recording)
    assert {"RK702"} <= {one.code for one in found}
    assert f"jrc0001: row 51 of jrc0001.{kind}.csv is damaged; left out" in _record(recording)
    assert verdict(recording, found).sentences[-1].endswith("is damaged; left out.")


def _record(recording: Recording) -> str:
    """What the printed report says of what is not on record."""
    printed = text(recording, diagnose(recording), 200)
    return printed[printed.index("\nrecord ") :].partition("\n[")[0]


def test_a_node_whose_gpus_have_no_rows_is_not_healthy(tmp_path: Path) -> None:
    trace = run(nodes=2)
    _tables(trace.write(tmp_path), "gpu")[1].unlink()
    recording = load(tmp_path, trace.facts())
    assert diagnose(recording) == ()
    headline = verdict(recording, ()).headline
    assert headline.startswith("Nothing wrong was found in what is on record; the GPUs worked 9")
    assert "Samples tell of 50 % of the time; the rest is not known." in _record(recording)


@pytest.mark.parametrize(("lost", "said"), [(700, True), (30, False)])
def test_a_gap_is_said_where_it_is_long(lost: float, said: bool) -> None:
    recording = run(silences=(Silence(0, 1000, 1000 + lost, again=True),)).recording()
    assert diagnose(recording) == ()
    sentences = " ".join(verdict(recording, ()).sentences)
    assert ("Samples tell of 6" in sentences) is said
    assert ("\nrecord " in text(recording, ())) is said


def test_the_cost_of_what_was_not_sampled(tmp_path: Path) -> None:
    trace = run()
    for table in _tables(trace.write(tmp_path), "host"):
        table.unlink()
    recording = load(tmp_path, trace.facts())
    said = " ".join(text(recording, diagnose(recording)).split())
    assert "efficiency not known: no sample tells of it" in said
