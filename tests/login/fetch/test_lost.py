"""A fetch that stood still for so long that another has gone on in its place does no harm then."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base.lock import LockLost
from rankup.login.fetch.start import Start, attempt
from rankup.sandbox import copies
from rankup.sandbox.processes import marked
from rankup.sandbox.watch import Interrupt, Limits
from rankup.site.caches import Caches

_SCRIPT = """
import os, time
open("report.txt", "w").write("half")
open(os.environ["READY"], "w").close()
time.sleep(600)
"""


def test_its_script_is_ended_and_nothing_of_it_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, ready = tmp_path / "project", tmp_path / "ready"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("READY", str(ready))
    monkeypatch.setenv("HOME", str(tmp_path))
    (project / "train.py").write_text(_SCRIPT)
    (project / "report.txt").write_text("of last week")
    seen: list[Path] = []

    def check() -> None:
        if ready.exists():
            seen.extend((project / ".rankup").glob("fetch-*"))
            raise LockLost("another one has gone on")

    start = Start(
        script=project / "train.py",
        args=(),
        roots=(project,),
        area=copies.area(project),
        caches=Caches(tmp_path / "cache", None, (), {}),
        threads=1,
        limits=Limits(600, 4 * 10**9),
        check=check,
    )
    with (
        Interrupt() as interrupt,
        pytest.raises(LockLost, match="another one has gone on"),
        attempt(start, interrupt),
    ):
        pass
    [folder] = seen
    assert not marked(str(folder))
    assert not folder.exists()
    assert (project / "report.txt").read_text() == "of last week"
