"""A fetch that stood still for so long that another has gone on in its place does no harm then."""

from __future__ import annotations

import os
import subprocess
import sys

from rankup.sandbox.processes import marked

from ..stage import Stage, until

_SCRIPT = """
import os, time
open("report.txt", "w").write("half")
open(os.environ["READY"], "w").close()
time.sleep(600)
"""


def test_its_script_is_ended_and_nothing_of_it_is_left(stage: Stage) -> None:
    ready = stage.home / "ready"
    (stage.project / "train.py").write_text(_SCRIPT)
    (stage.project / "report.txt").write_text("of last week")
    process = subprocess.Popen(
        [sys.executable, "-m", "rankup", "fetch", "train.py"],
        cwd=stage.project,
        env={**os.environ, **stage.environment, "READY": str(ready)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(ready.exists)
        [folder] = (stage.project / ".rankup").glob("fetch-*")
        (stage.project / ".rankup" / ".project.lock").unlink()  # as who takes it over
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, errors
    assert "another one has gone on with project" in errors
    assert not marked(str(folder))
    assert not folder.exists()
    assert (stage.project / "report.txt").read_text() == "of last week"
