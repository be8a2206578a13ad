"""A fetch that stood still for so long that another has gone on in its place does no harm then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankup.base.lock import LockLost
from rankup.login.fetch import attempt, state
from rankup.login.fetch.attempt import Start
from rankup.login.fetch.recover import recover
from rankup.login.fetch.supervise import Interrupt, Limits
from rankup.login.fetch.tree import marked
from rankup.site.caches import Cache, Caches

_SCRIPT = """
import time
file = open("report.txt", "w")
file.write("half")
file.flush()
open("ready", "w").close()
time.sleep(600)
"""


def _caches(tmp_path: Path) -> Caches:
    home = Cache("Hugging Face", "HF_HOME", tmp_path / "hf", "site")
    return Caches(tmp_path / "cache", None, (home,), {})


def test_a_script_is_ended_and_its_files_are_left_to_who_took_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    report = tmp_path / "report.txt"
    report.write_text("of last week")

    def check() -> None:
        if (tmp_path / "ready").exists():
            raise LockLost("another one has gone on")

    start = Start(
        script=script,
        args=(),
        area=state.area(tmp_path),
        home=tmp_path,
        caches=_caches(tmp_path),
        variables=dict(os.environ),
        threads=1,
        limits=Limits(600, 4 * 10**9),
        check=check,
    )
    with Interrupt() as interrupt, pytest.raises(LockLost, match="another one has gone on"):
        attempt.run(start, interrupt)
    (left,) = state.abandoned(start.area)
    assert not marked(str(left.folder))
    assert report.read_text() == "half"  # to put it back is the other one's affair
    recover(start.area, tmp_path)
    assert report.read_text() == "of last week"
