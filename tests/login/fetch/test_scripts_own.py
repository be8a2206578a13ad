"""What a script makes for itself in its first step is not left in the way of the job."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from ..payloads import SAMPLES
from ..stage import Stage
from ..web import Web


def _database(path: Path) -> list[str]:
    with sqlite3.connect(path) as study:
        names = [name for (name,) in study.execute("select name from runs")]
    study.close()
    return names


def test_a_script_that_starts_only_once_is_proved_and_leaves_nothing_of_its_run(
    stage: Stage, web: Web
) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("unique_run.py")
    results = stage.project / "results.csv"
    results.write_text("of last week\n")
    results.chmod(0o644)
    with sqlite3.connect(stage.project / "study.db") as study:
        study.execute("create table runs (name)")
        study.execute("insert into runs values ('of last week')")
    study.close()

    got = stage.fetch(script)

    assert got.code == 0, got.said
    assert got.proved, got.said
    assert "once more, without what an earlier start has made" in got.err
    kept = {"unique_run.py", "results.csv", "study.db", "train.bin"}
    left = {name for name in stage.files() if not name.startswith("runs/")}
    assert left - {"last.pt"} == kept
    assert not (stage.project / "out").exists()
    assert _database(stage.project / "study.db") == ["of last week"]
    assert stat.S_IMODE(results.stat().st_mode) == 0o644
    # Each of it is said once, and nothing that was not there is "as before".
    assert got.err.count("study.db is as it was before") == 1
    assert "out/config.json is removed: every start writes it" in got.err
    assert "first-start.txt is removed: every start writes it" in got.err
    assert "last.pt is as it was" not in got.err
    # What stays, and is the script's own, is named.
    [line] = [line for line in got.out.splitlines() if line.startswith("made by the script, kept:")]
    assert "last.pt" in line
    # What comes after the first step was not reached.
    place = f"unique_run.py:{_line(script, 'https://example.test')}"
    assert f"not reached by this start, and not here: {place}" in got.err
    assert "https://example.test/valid.bin" in got.err
    assert got.err.startswith("rankup: running unique_run.py here, without a GPU")


@pytest.mark.slow
def test_a_folder_that_is_renamed_away_comes_back(stage: Stage, web: Web) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("flat.py")
    rotate = (
        'import os, shutil\nos.rename("old", "old_1")\nos.makedirs("old")\n'
        'open("old/x.txt", "w").close()\n'
        'shutil.rmtree("res")\nos.makedirs("res")\nopen("res/args.txt", "w").close()\n'
    )
    text = script.read_text().replace("\nimport torch\n", f"\n{rotate}import torch\n", 1)
    script.write_text(text)
    before = {"flat.py": text.encode(), "old/run.txt": b"a week", "res/log.txt": b"a month"}
    for name, content in before.items():
        (stage.project / name).parent.mkdir(exist_ok=True)
        (stage.project / name).write_bytes(content)
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert stage.files() == {**before, "data/train.bin": SAMPLES}
    assert "could not be" not in got.err


@pytest.mark.slow
def test_options_behind_the_script_are_said_to_be_the_scripts(stage: Stage) -> None:
    script = stage.project / "s.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    got = stage.fetch(script, "--dataset", "xsum")
    assert got.code == 1, got.said
    assert "options of rankup stand before the script: rankup fetch --dataset" in got.err


def _line(script: Path, text: str) -> int:
    lines = script.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)
