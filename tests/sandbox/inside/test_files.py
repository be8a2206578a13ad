"""What a script writes stays in its copy of the project; elsewhere it changes nothing.

One script does all that scripts do to files; the tests read what was told of it and what is left.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankup.sandbox.copies import Sandbox, sandbox

from .conftest import runner
from .running import Ended, Runner

pytestmark = pytest.mark.xdist_group("files")  # one process makes the one run
OLD = b"what was there before"
_OLD_FILES = (
    "twice.txt",
    "os.txt",
    "path.txt",
    "behind-link.txt",
    "copied.txt",
    "zipped.gz",
    "child.txt",
    "appended.txt",
    "updated.txt",
    "removed.txt",
    "runs/a/1.txt",
    "runs/2.txt",
    "emptied/1.txt",
    "log.txt",
    "mode.txt",
    "handed.txt",
    "d/edited.txt",
    "moved.txt",
    "redirected.txt",
    "many/1.txt",
    "many/2.txt",
    "inner/deep/1.txt",
    "lib/own.txt",
)
_LARGE = (
    "large.bin",
    "downloaded.bin",
    "by-script.bin",
    "by-name.bin",
    "option.bin",
    "tokens.json",
    "table.parquet",
    "frame.parquet",
    "rows.arrow",
    "model.jit",
)
_SCRIPT = """\
import gzip, os, pathlib, shutil, sqlite3, subprocess, sys

for _ in range(2):
    with open("twice.txt", "w") as file:
        file.write("new")

# Every way to empty a file.
os.close(os.open("os.txt", os.O_WRONLY | os.O_TRUNC))
pathlib.Path("path.txt").write_text("new")
pathlib.Path("link.txt").write_text("new")
shutil.copyfile("other.txt", "copied.txt")
gzip.open("zipped.gz", "w").close()
subprocess.run([sys.executable, "-c", 'open("child.txt", "w")'], check=True)

open("appended.txt", "a").write("more")
with open("updated.txt", "r+") as file:
    file.write("NEW")
with open("large.bin", "r+b") as file:
    file.write(b"NEW")

os.remove("removed.txt")
shutil.rmtree("runs")
os.makedirs("runs/new")
open("runs/new/log.txt", "w")
os.remove("emptied/1.txt")
os.rmdir("emptied")
os.rename("log.txt", "log.1.txt")
os.chmod("mode.txt", 0o600)
study = sqlite3.connect("study.db")
study.execute("insert into runs values ('of the fetch')")
study.commit()
study.close()

# Of a folder that is a link in the copy.
open("many/1.txt", "w").write("new")
open("many/new.txt", "w").write("new")
os.rename("many/2.txt", "many/3.txt")
os.chdir("inner")
open("deep/1.txt", "w").write("new")
os.chdir("..")
open("../beside/new.txt", "w").write("new")
open("../beside/old.txt", "a").write("more")

# A module that PYTHONPATH names, by its absolute path in the project.
import helper

# Other programs.
subprocess.run(["rm", "handed.txt"], check=True)
subprocess.run(["sed", "-i", "s/what/x/", "edited.txt"], cwd="d", check=True)
os.system("true; mv moved.txt elsewhere.txt; echo more >> redirected.txt")

subprocess.run(["dd", "if=other.txt", "of=option.bin"], check=True, capture_output=True)
source = pathlib.Path("other.txt").absolute().as_uri()
subprocess.run(["curl", "-s", "-o", "downloaded.bin", source], check=True)
pathlib.Path("get.sh").write_text(f"curl -s -o 'by-script.bin' {source} 2>/dev/null")
subprocess.run(["bash", "get.sh"], check=True)
named = pathlib.Path("sub/by-name.bin").absolute().as_uri()
subprocess.run(["curl", "-s", "-O", named], check=True)
subprocess.run("ls -l huge.bin > listed.txt", shell=True, check=True)

# C++ and Rust.
import pandas
import pyarrow.parquet
import tokenizers
import torch

pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), "table.parquet")
pandas.DataFrame({"a": [1]}).to_parquet("frame.parquet")
pyarrow.ipc.new_file("rows.arrow", pyarrow.schema([])).close()
tokenizers.Tokenizer(tokenizers.models.BPE()).save("tokens.json")
torch.jit.script(torch.nn.Linear(1, 1)).save("model.jit")
try:
    subprocess.run(["truncate", "-s", "1", "huge.bin"])
    raise SystemExit("the user's file is empty by now")
except PermissionError:
    pass

# Absolute paths.
outside = pathlib.Path(os.environ["OUTSIDE"])
made = outside / "made"
made.mkdir()
for _ in range(2):
    (made / "new.txt").write_text("new")
subprocess.run([sys.executable, "-c", f"open({str(made / 'child.txt')!r}, 'w').close()"])
(made / "child.txt").write_text("mine too")
(outside / "x.part").write_text("gone on with")
shutil.rmtree(made)
refused = 0
for change in (
    lambda: (outside / "old.txt").write_text("new"),
    lambda: (outside / "old.txt").unlink(),
    lambda: os.rename(outside / "old.txt", outside / "new.txt"),
    lambda: os.replace("other.txt", outside / "old.txt"),
    lambda: shutil.rmtree(outside / "folder"),
    lambda: sqlite3.connect(outside / "old.txt"),
    lambda: os.truncate(outside / "old.txt", 0),
):
    try:
        change()
    except PermissionError as error:
        refused += "rankup: " in str(error)
cache = outside / "cache" / "index"
cache.write_text("of a library")
print(refused)
"""


@dataclass(frozen=True)
class Kept:
    """The project and its copy after the script."""

    run: Runner
    box: Sandbox
    outside: Path
    done: Ended
    before: dict[str, bytes]

    def copied(self, name: str) -> bytes:
        return self.box.inside(self.run.folder / name).read_bytes()


def _tree(folder: Path) -> dict[str, bytes]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    files = (path for path in found if path.name != "huge.bin")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """The one run of the script, in a copy."""
    top = tmp_path_factory.mktemp("files")
    outside = top / "outside"
    for name in ("old.txt", "x.part", "folder/old.txt", "cache/index"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_bytes(OLD)
    with runner(top) as run:
        run.file("train.py", _SCRIPT)
        for name in _OLD_FILES:
            path = run.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(OLD)
        run.file("other.txt", "other")
        for name in _LARGE:
            (run.folder / name).write_bytes(OLD * 60_000)
        (run.folder / "sub").mkdir()
        run.file("sub/by-name.bin", "other")
        os.truncate(run.file("huge.bin"), 257 << 20)
        write = "import pathlib\npathlib.Path(__file__).with_name('own.txt').write_text('new')\n"
        run.file("lib/helper.py", write)
        (run.folder / "link.txt").symlink_to("behind-link.txt")
        (top / "beside").mkdir()
        (top / "beside" / "old.txt").write_bytes(OLD)
        with closing(sqlite3.connect(run.folder / "study.db")) as study:
            study.execute("create table runs (name)")
            study.commit()
        before = _tree(top)
        area = top / "area"
        area.mkdir()
        linked = [run.folder / "many", run.folder / "inner" / "deep"]
        with sandbox(area, [run.folder], linked) as box:
            done = run(
                _SCRIPT,
                shadow=str(box.copy),
                free=[str(outside / "cache")],
                environment={"OUTSIDE": str(outside), "PYTHONPATH": str(run.folder / "lib")},
            )
            assert done.code == 0, done.explain()
            assert not done.of("problem")
            yield Kept(run, box, outside, done, before)


def test_nothing_that_was_there_is_changed(kept: Kept) -> None:
    top = kept.run.folder.parent
    after = {name: data for name, data in _tree(top).items() if name in kept.before}
    free = {"outside/cache/index": b"of a library", "outside/x.part": b"gone on with"}
    assert after == {**kept.before, **free}
    assert kept.done.out == "7\n", kept.done.explain()
    assert len(kept.done.of("refused")) == 8
    assert (kept.run.folder / "huge.bin").stat().st_size == 257 << 20
    assert (top / "outside/made").exists() is False


@pytest.mark.parametrize("name", _OLD_FILES[:7])
def test_every_way_to_empty_a_file_empties_that_of_the_copy(kept: Kept, name: str) -> None:
    assert kept.copied(name) != OLD
    event = kept.done.of("open", path=str(kept.run.folder / name))[0]
    assert (event["existed"], event["how"], event["copied"]) == (True, "truncate", True)


def test_what_is_changed_in_its_place_is_changed_in_the_copy(kept: Kept) -> None:
    assert kept.copied("appended.txt") == OLD + b"more"
    assert kept.copied("updated.txt") == b"NEW" + OLD[3:]
    assert kept.copied("large.bin")[:4] == b"NEW" + OLD[3:4]
    for name in ("downloaded.bin", "option.bin", "by-script.bin", "by-name.bin"):
        assert kept.copied(name) == b"other"
    for name in ("table.parquet", "frame.parquet", "rows.arrow", "tokens.json", "model.jit"):
        assert 0 < len(kept.copied(name)) < 10_000
    assert kept.copied("redirected.txt") == OLD + b"more\n"
    assert kept.copied("d/edited.txt") == OLD.replace(b"what", b"x")
    with closing(sqlite3.connect(kept.box.inside(kept.run.folder / "study.db"))) as study:
        assert study.execute("select * from runs").fetchall() == [("of the fetch",)]


def test_folders_that_are_links_become_folders_of_the_copy(kept: Kept) -> None:
    assert (kept.copied("many/1.txt"), kept.copied("many/3.txt")) == (b"new", OLD)
    assert kept.copied("inner/deep/1.txt") == kept.copied("lib/own.txt") == b"new"
    assert kept.copied("../beside/old.txt") == OLD + b"more"


def test_new_files_of_the_copy_are_known_by_their_places_in_the_project(kept: Kept) -> None:
    folder = kept.run.folder
    names = {os.path.relpath(path, folder) for path in kept.box.new_files()}
    assert names >= {"runs/new/log.txt", "many/new.txt", "../beside/new.txt", "elsewhere.txt"}
    assert not names & set(_OLD_FILES)
    assert kept.done.one("open", path=str(folder / "many/new.txt"))["existed"] is False
    rename = kept.done.one("rename", **{"from": str(folder / "log.txt")})
    assert (rename["to"], rename["made"]) == (str(folder / "log.1.txt"), False)


def test_programs_are_told_by_name_and_where_they_were_started(kept: Kept) -> None:
    words = [one["words"] for one in kept.done.of("spawn")]
    assert ["rm"] in words
    assert all(one["where"].startswith("train.py:") for one in kept.done.of("spawn"))
