"""`rankup bench-data`: the verdict on what was measured, the parts themselves, and the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rankup.data
from rankup.base.errors import UserError
from rankup.data.bench import Raised, Request, bench_data, load_transform
from rankup.data.bench.verdict import Data, Load, Measured, Parts, Spread, judge, lines

GB = 10**9
RunRankup = Callable[..., Any]


def _just(value: float) -> Spread:
    return Spread(value, value, value, 5)


DATA = Data(
    **{"path": "photos.h5", "staged": "", "split": "train"},
    **{"container": "hdf5", "how": "mmap", "samples": 1_281_167, "size": 140 * GB},
    **{
        "storage": "gpfs",
        "pieces": False,
        "resident": False,
        "image": "JPEG",
        "width": 500,
        "height": 375,
    },
    **{"transform": "photos:RandomResizedCrop(224)", "result": "uint8 (3, 224, 224)"},
    **{"own": False, "in_place": True, "batch": 256, "cores": 8, "gpus": 4, "busy": 0.1},
)
PARTS = Parts(_just(1e-4), _just(1e-5), _just(1e-3), _just(5e-5))


def _measured(demand: float = 9200.0, rate: float = 7200.0, **given: Any) -> Measured:
    data = replace(DATA, **{key: value for key, value in given.items() if hasattr(DATA, key)})
    parts = replace(PARTS, **{key: value for key, value in given.items() if hasattr(PARTS, key)})
    loads = (Load("processes", 8, 256, 0.9 * rate), Load("threads", 8, 256, rate))
    return Measured(data, parts, loads, demand)


def test_what_takes_longest_limits() -> None:
    verdict = judge(_measured())
    assert (verdict.limit, verdict.met, verdict.chosen.kind) == ("transform", False, "threads")
    assert verdict.supply == 7200
    assert "9,200/s take about 11, and this process may use 8" in verdict.change
    verdict = judge(_measured(demand=7000))
    assert (verdict.met, verdict.change) == (True, "")


@pytest.mark.parametrize(
    ("given", "limit", "word"),
    [
        ({"read": _just(2e-3)}, "read", "`rankup stage photos.h5`"),
        ({"read": _just(2e-3), "container": "files"}, "read", "`rankup pack photos.h5 photos.h5`"),
        ({"read": _just(2e-3), "pieces": True}, "read", "each sample is one piece"),
        ({"read": _just(2e-3), "resident": True}, "read", "more cores"),
        ({"collate": _just(2e-3), "in_place": False}, "collate", "Shaped"),
        ({"copy": _just(1 / 1000)}, "copy", "uint8"),
        ({"transform": None, "collate": _just(1e-5)}, "loader", "several samples as one"),
        ({"own": True, "transform": _just(1e-3)}, "transform", "a GPU does to whole batches"),
    ],
)
def test_each_part_can_limit_and_has_one_thing_to_change(
    given: dict[str, Any], limit: str, word: str
) -> None:
    parts = {**vars(PARTS), **given}
    takes = [parts[name] for name in ("read", "transform", "collate") if parts[name] is not None]
    work = sum(one.median for one in takes)
    measured = _measured(**given, rate=7200 if limit == "loader" else 7.2 / work)
    verdict = judge(measured)
    assert verdict.limit == limit
    assert word in verdict.change
    shown = " ".join(" ".join(lines(measured, verdict)).split())
    assert f"The bottleneck is {verdict.limits}" in shown
    assert f"What to change: {' '.join(verdict.change.split())}." in shown


def test_what_other_programs_take_is_not_the_loaders() -> None:
    small: dict[str, Any] = {"transform": None, "collate": _just(1e-5)}
    assert judge(_measured(**small)).limit == "loader"
    assert judge(_measured(**small, busy=7.0)).limit == "read"


_ODD = st.one_of(st.just(0.0), st.floats(1e-12, 1e6))
_ODD_SPREAD = st.builds(Spread, _ODD, _ODD, _ODD, st.integers(1, 9))


@given(
    parts=st.builds(
        Parts,
        first=_ODD_SPREAD,
        read=_ODD_SPREAD,
        transform=st.none() | _ODD_SPREAD,
        collate=st.none() | _ODD_SPREAD,
        copy=st.none() | _ODD_SPREAD,
    ),
    loads=st.lists(
        st.builds(
            Load,
            kind=st.sampled_from(["threads", "processes"]),
            workers=st.integers(1, 300),
            batch=st.integers(1, 256),
            rate=_ODD,
        ),
        min_size=1,
        max_size=4,
    ),
    size=st.integers(0, 10**18),
    gpus=st.integers(0, 8),
    demand=st.floats(1e-3, 1e9),
)
def test_odd_figures_have_a_verdict_too(
    parts: Parts, loads: list[Load], size: int, gpus: int, demand: float
) -> None:
    measured = Measured(replace(DATA, size=size, gpus=gpus), parts, tuple(loads), demand)
    verdict = judge(measured)
    assert verdict.chosen in loads
    assert verdict.met == (verdict.supply >= demand)
    assert verdict.met == (verdict.change == "")
    text = list(lines(measured, verdict))
    assert 8 <= len(text) <= 20
    assert not any(word in "\n".join(text) for word in ("nan", "inf ", "None"))


@pytest.mark.parametrize(
    "wrong",
    ["x", "x:", ":x", "a:b(", "a:b(open('x'))", "a:b(**{})", "a:b()()", "a:1", "a b:c"],
)
def test_a_spelling_is_not_evaluated(wrong: str) -> None:
    with pytest.raises(UserError, match="is not understood"):
        load_transform(wrong)


def test_what_a_transform_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("bench_mine.py").write_text(
        "number = 3\nclass Crop:\n def __init__(self, size): self.size = size\n"
        " def __call__(self, data, rng): return self.size\ndef boom(): 1 / 0\n"
    )
    Path("bench_broken.py").write_text("import not_there_at_all\n")
    found: Any = load_transform("bench_mine:Crop(5)")
    assert found(b"", None) == 5
    assert load_transform("photos:RandomResizedCrop(32)") == rankup.data.photos.RandomResizedCrop(
        32
    )
    Path("tokens.py").write_text("def text(data, rng): return 7\n")  # and not rankup's
    assert load_transform("tokens:text")(b"", None) == 7  # type: ignore[arg-type]
    for text, said in (
        ("bench_mine:Crap", "did you mean Crop"),
        ("bench_mine:Crop", r"is a class; write what it is made with"),
        ("bench_mine:number", "is int; it should be a function"),
        ("not_there:x", "no module 'not_there'"),
        ("texts:text", "no module 'texts'"),
    ):
        with pytest.raises(UserError, match=said):
            load_transform(text)
    for text in ("bench_mine:boom()", "bench_broken:x", "bench_mine:Crop(1, 2)"):
        with pytest.raises(Raised):
            load_transform(text)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """64 arrays of 4 kB with labels, written as numpy does."""
    rng = np.random.default_rng(0)
    path = tmp_path / "arrays.npz"
    np.savez(path, x=rng.random((64, 1024), np.float32), y=np.arange(64) % 4)
    return path


def _told(capsys: pytest.CaptureFixture[str], asked: Request) -> dict[str, Any]:
    assert bench_data(replace(asked, as_json=True)) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_transform_that_sleeps_is_what_limits(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(arrays.parent)
    monkeypatch.syspath_prepend(str(arrays.parent))
    Path("bench_asleep.py").write_text(
        "import time\ndef nap(data, rng):\n    time.sleep(0.05)\n    return data[:3].copy()\n"
    )
    asked = Request(str(arrays), transform="bench_asleep:nap", seconds=0.3, workers=1, batch=8)
    told = _told(capsys, asked)
    verdict = told["verdict"]
    assert (verdict["limit"], verdict["met"]) == ("transform", False)
    assert told["parts"]["transform"]["low"] >= 0.05
    assert [load["kind"] for load in told["loads"]] == ["processes", "threads"]
    assert "more cores" not in verdict["change"]  # it is the user's own
    assert told["data"]["result"] == "float32 (3,)"


def test_a_transform_that_raises_is_shown_with_its_traceback(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(arrays.parent)
    monkeypatch.syspath_prepend(str(arrays.parent))
    Path("bench_wrong.py").write_text("def nothing(data, rng):\n    return data['nothing']\n")
    assert bench_data(Request(str(arrays), transform="bench_wrong:nothing", seconds=0.3)) == 1
    said = capsys.readouterr().err
    assert "in nothing" in said
    assert "return data['nothing']" in said
    assert "--transform bench_wrong:nothing raised, so there is nothing to measure" in said


@pytest.mark.parametrize("calls", [0, 70])
def test_a_transform_that_exits_is_no_success(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """At its first call, and while it is measured, when each of the 64 was made once."""
    monkeypatch.chdir(arrays.parent)
    monkeypatch.syspath_prepend(str(arrays.parent))
    Path(f"bench_exits{calls}.py").write_text(
        f"import itertools, sys\ncalls = itertools.count()\ndef leave(data, rng):\n"
        f"    if next(calls) >= {calls}: sys.exit(0)\n    return data[:3].copy()\n"
    )
    with pytest.raises(UserError, match=r"leave ended the program \(SystemExit: 0\)"):
        bench_data(Request(str(arrays), transform=f"bench_exits{calls}:leave", seconds=0.3))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"demand": 0.0}, "--demand is 0; it should be more than 0"),
        ({"demand": float("nan")}, "--demand is nan"),
        ({"seconds": -1.0}, "--seconds is -1"),
        ({"workers": 0}, "--workers is 0"),
        ({"batch": 0}, "--batch is 0"),
        ({"split": "test"}, "no split 'test'"),
        ({"file": "not-there.h5"}, "no file or folder"),
    ],
)
def test_what_makes_no_sense_is_refused(arrays: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        bench_data(replace(Request(str(arrays)), **options))


def test_without_torch_it_says_so(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="torch, which is not installed here"):
        bench_data(Request(str(arrays)))


@pytest.mark.slow
def test_photos_by_the_command_itself(
    tmp_path: Path, run_rankup: RunRankup, rankup_here: RunRankup
) -> None:
    assert rankup_here(["pack", _photos(tmp_path / "photos"), "photos.h5"]).returncode == 0
    done = run_rankup(["bench-data", "photos.h5", "--seconds", "1", "--size", "64"])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for said in ("photos:RandomResizedCrop(64)", "decode + crop", "threads: ", "samples/s"):
        assert said in done.stdout
    assert len(done.stdout.splitlines()) <= 16
    missing = rankup_here(["bench-data", "photos.h5", "--transform", "nowhere:x"])
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("rankup: --transform: there is no module 'nowhere'")
    assert "Traceback" not in missing.stderr


def _photos(folder: Path) -> Path:
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(12):
        path = folder / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (200, 300, 3), np.uint8)).save(path)
    return folder
