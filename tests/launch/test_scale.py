"""`rankup scale`: points, going on after an interruption, the table and what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankup.base.errors import UserError
from rankup.launch.request import created, new
from rankup.launch.scale import command, series
from rankup.launch.scale.command import Wish, counts, scale
from rankup.launch.show_status import show as status
from rankup.site import rundir
from rankup.site.jobspec import JobSpec
from tests.conftest import RunRankup, TextFiles

SMALL = (
    *("--vocab", "byte", "--seq-len", "32", "--layers", "1", "--dim", "32", "--heads", "2"),
    *("--global-batch", "8", "--micro-batch", "4", "--steps", "12", "--warmup", "2"),
    *("--valid-every", "6", "--checkpoint-every", "6"),
)


class Fake:
    """In the place of `rankup run`: it leaves what a run leaves.

    Attributes:
        codes: how each run ends, by its ranks; else well.
        asked: every run that was started.
    """

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.asked: list[JobSpec] = []

    def __call__(self, request: JobSpec, extra: Mapping[str, str]) -> int:
        self.asked.append(request)
        ranks = request.nproc or 0
        code = self.codes.get(ranks, 0)
        if code == 2:
            raise UserError("no such thing")
        runs = Path.cwd() / "runs"
        directory, job = new(request, runs)
        with created(directory, job, runs):
            pass
        start = 1.7e9
        attempt = {"started": "2026-11-22T10:00:00+0000", "nproc": ranks, "node": "n", "code": code,
                "ended": "2026-11-22T10:01:00+0000"}  # fmt: skip
        rundir.write(directory, replace(job, attempts=[attempt]))
        batch = _value(request.args, "--global-batch", 8)
        steps = _value(request.args, "--steps", 12)
        seconds = 1 / ranks
        lines: list[dict[str, Any]] = [
            {
                **{"step": n + 1, "loss": 5 - n / steps, "time": start + n * seconds},
                **{"tokens_per_s": batch * 32 / seconds, "epoch": 0},
            }
            for n in range(steps)
        ]
        if not code:
            lines.append({"final": True, "step": steps, "valid_loss": 4 + 1 / steps})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / "metrics.jsonl").write_text(text)
        return code


def _value(args: tuple[str, ...], name: str, otherwise: int) -> int:
    found = [int(args[i + 1]) for i, word in enumerate(args) if word == name]
    return found[-1] if found else otherwise


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    found = Fake()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(command, "run", found)
    return found


def series_of(folder: Path) -> Path:
    (found,) = (folder / "runs" / series.FOLDER).iterdir()
    return found


def test_strong(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wish = Wish("language-model", SMALL, "1,4,2", local=True)
    assert scale(wish) == 0
    assert [one.nproc for one in fake.asked] == [1, 2, 4]
    assert {one.args for one in fake.asked} == {SMALL}
    said = capsys.readouterr().out
    lines = said.splitlines()
    head = next(at for at, line in enumerate(lines) if line.lstrip().startswith("ranks"))
    assert [line.split()[0] for line in lines[head + 1 : head + 4]] == ["1", "2", "4"]
    assert lines[head].split()[-1] == "valid_loss"
    assert "same batch on all (strong)" in said
    assert "The result is the same on all: valid_loss" in said
    folder = series_of(tmp_path)
    assert (folder / "scaling.txt").read_text() in said
    assert (folder / "scaling.html").stat().st_size > 10_000
    assert (folder / series.FILE).stat().st_mode & 0o077 == 0
    # Through is through: going on runs nothing again.
    assert scale(Wish(None, resume=folder.name)) == 0
    assert len(fake.asked) == 3
    capsys.readouterr()
    assert status(folder.name) == 0
    assert "The result is the same on all" in capsys.readouterr().out
    assert status(folder.name, as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in shown["points"]] == ["COMPLETED"] * 3


def test_weak_says_what_it_costs(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert scale(Wish("language-model", SMALL, "1,2,4", weak=True, local=True)) == 0
    batches = [_value(one.args, "--global-batch", 0) for one in fake.asked]
    steps = [_value(one.args, "--steps", 0) for one in fake.asked]
    assert (batches, steps) == ([8, 16, 32], [12, 6, 3])
    assert [_value(one.args, "--valid-every", 0) for one in fake.asked] == [6, 3, 2]
    said = capsys.readouterr().out
    assert "4 ranks took 3 steps instead of 12" in said
    assert "valid_loss 4.333 instead of 4.083 (+6.1%)" in said
    assert "fewer steps over the same data" in said


def test_a_failed_point_does_not_lose_the_others(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.codes = {2: 1, 3: 2}
    assert scale(Wish("language-model", SMALL, "1,2,3,4", local=True)) == 1
    assert [one.nproc for one in fake.asked] == [1, 2, 3, 4]
    said = capsys.readouterr()
    assert "2: failed." in said.out
    assert "3: new." in said.out
    assert "4 ranks were" in said.out
    folder = series_of(tmp_path)
    assert f"rankup scale --resume {folder.name}" in said.err
    fake.codes = {}
    assert scale(Wish(None, resume="last")) == 0
    assert [one.nproc for one in fake.asked[4:]] == [2, 3]
    assert fake.asked[4].id == f"{folder.name}-2-2"  # the failed one stays to be looked at
    assert "2: failed." not in capsys.readouterr().out


def test_it_stops_when_it_is_asked_to(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.codes = {2: 130}
    assert scale(Wish("language-model", SMALL, "1,2,4", local=True)) == 1
    assert [one.nproc for one in fake.asked] == [1, 2]
    fake.codes = {}
    assert scale(Wish(None, resume=series_of(tmp_path).name)) == 0
    assert [one.nproc for one in fake.asked[2:]] == [2, 4]


def test_a_second_copy_is_refused(fake: Fake, tmp_path: Path) -> None:
    assert scale(Wish("language-model", SMALL, "1,2", local=True)) == 0
    folder = series_of(tmp_path)
    with rundir.locked(folder), pytest.raises(UserError, match="going on already"):
        scale(Wish(None, resume=folder.name))


def test_nodes_and_ranks() -> None:
    found = series.Series(
        "a", "language-model", list(SMALL), [1, 4, 8], False, None, 4, ".", False, True
    )
    planned = command.points(found)
    assert [(one.nodes, one.ranks) for one in planned] == [(1, 1), (1, 4), (2, 4)]
    with pytest.raises(UserError, match="give 4 or 8"):
        command.points(replace(found, counts=[1, 6]))


def test_weak_with_a_script() -> None:
    found = series.Series(
        "a", "/t.py", ["--bs=64", "-x"], [1, 2], True, "--bs", 4, ".", False, True
    )
    assert [one.args[-1] for one in command.points(found)] == ["--bs=64", "--bs=128"]
    with pytest.raises(UserError, match="does not stand behind TARGET"):
        command.points(replace(found, batch_option="--batch"))
    with pytest.raises(UserError, match="--batch-option=--batch-size"):
        command.points(replace(found, batch_option=None))


BAD: list[tuple[Wish, str]] = [
    (Wish("language-model", (), "1"), "two numbers"),
    (Wish("language-model", (), "1,x"), "no list of numbers"),
    (Wish("language-model", (), "0,1"), "two numbers"),
    (Wish("language-model"), "say on how many GPUs"),
    (Wish(None, gpus="1,2"), "nothing to scale"),
    (Wish("language-modle", (), "1,2"), "language-model"),
    (Wish("language-model", ("--heads", "3"), "1,2"), "--heads"),
    (Wish(None, resume="nothing"), "no series"),
]


@pytest.mark.parametrize(("wish", "why"), BAD)
def test_what_is_refused_leaves_nothing(fake: Fake, tmp_path: Path, wish: Wish, why: str) -> None:
    with pytest.raises(UserError, match=why):
        scale(replace(wish, local=True))
    assert not fake.asked
    assert not (tmp_path / "runs").exists()


def test_a_damaged_record_is_named(fake: Fake, tmp_path: Path) -> None:
    assert scale(Wish("language-model", SMALL, "1,2", local=True)) == 0
    file = series_of(tmp_path) / series.FILE
    whole = file.read_text()
    values = json.loads(whole)
    wrong = [{**values, **one} for one in ({"counts": ["1"]}, {"id": "../x"}, {"per_node": 0})]
    for torn in (*map(json.dumps, wrong), whole.replace('"cwd"', '"cdw"'), whole[:50]):
        file.write_text(torn)
        with pytest.raises(UserError, match="is damaged"):
            scale(Wish(None, resume=str(file.parent)))


def test_dry_run(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scale(Wish("language-model", SMALL, "1,2", local=True, dry_run=True)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith("2: rankup run --nproc 2 language-model --vocab byte")
    assert not (tmp_path / "runs").exists()
    assert counts(" 4,1,4 ") == [1, 4]


@pytest.mark.slow
def test_one_and_two_ranks(run_rankup: RunRankup, small_text: TextFiles, tmp_path: Path) -> None:
    words = ["scale", "--local", "--gpus", "1,2", "language-model", *SMALL]
    words += ["--train", str(small_text.train), "--valid", str(small_text.valid)]
    done = run_rankup([*words, "--test", str(small_text.test)], timeout=280)
    assert done.returncode == 0, done.stderr
    assert "The result is the same on all: test_loss" in done.stdout
    again = run_rankup(["scale", "--resume", "last"], timeout=120)
    assert again.returncode == 0, again.stderr
    assert done.stdout.endswith(again.stdout), "the table of the series, without what the runs said"
