"""What a script would overwrite or remove is kept beside it, and named before anything is done.

One script does all that scripts do to files, each to files of its own; the tests read what was told
of it and what is left.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import runner
from .running import Ended, Runner

pytestmark = pytest.mark.xdist_group("outputs")  # one process makes the one run
OLD = b"what was there before"
_OLD_FILES = (
    *("twice.txt", "os.txt", "path.txt", "behind-link.txt", "copied.txt", "zipped.gz", "child.txt"),
    *("appended.txt", "updated.txt", "late-emptied.txt", "late-removed.txt", "removed.txt"),
    *("runs/a/1.txt", "runs/2.txt", "emptied/1.txt", "log.txt", "shared.txt", "mode.txt"),
    *("cache.lock", "handed.txt", "d/edited.txt", "moved.txt"),
)
_SCRIPT = """\
import gzip, multiprocessing, os, pathlib, shutil, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

def save():
    with open("twice.txt", "w") as file:
        file.write("new")
save()
save()

# Every way to empty a file.
os.close(os.open("os.txt", os.O_WRONLY | os.O_TRUNC))
pathlib.Path("path.txt").write_text("new")
pathlib.Path("link.txt").write_text("new")
shutil.copyfile("other.txt", "copied.txt")
gzip.open("zipped.gz", "w").close()
subprocess.run([sys.executable, "-c", 'open("child.txt", "w")'], check=True)

for _ in range(2):
    open("appended.txt", "a").write("more")
with open("updated.txt", "r+") as file:
    file.write("NEW")
for name in "late-emptied.txt", "late-removed.txt":
    open(name, "a").write("+")
open("late-emptied.txt", "w")
os.remove("late-removed.txt")

os.remove("removed-link.txt")
os.unlink("removed.txt")
shutil.rmtree("runs")
assert not os.path.exists("runs")
os.makedirs("runs/new")
open("runs/new/log.txt", "w")
os.remove("emptied/1.txt")
os.rmdir("emptied")
assert not os.path.exists("emptied")

# What the run itself has made.
for _ in range(2):
    open("new.txt", "w").write("x")
os.remove("new.txt")
os.makedirs("part/deep")
open("part/deep/a.txt", "w").write("x")
os.rename("part", "whole")
open("whole/deep/a.txt", "w")
shutil.rmtree("whole")
subprocess.run([sys.executable, "-c", "open('made.txt', 'w').write('x')"], check=True)
open("made.txt", "w").write("y")
os.symlink("made.txt", "made-link")
os.remove("made-link")

os.mkdir("renamed")
os.rename("log.txt", "renamed/log.1.txt")
open("renamed/log.1.txt", "w")

def work(_):
    open("shared.txt", "w").write("worker")
open("shared.txt", "w").write("main")
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(work, range(4))

def write(number):
    for name in f"{number}.txt", "same.txt":
        with open(name, "a") as file:
            file.write("x")
    os.replace(f"{number}.txt", f"final-{number}.txt")
with ThreadPoolExecutor(8) as pool:
    list(pool.map(write, range(100)))
print(len(open("same.txt").read()))

os.chmod("mode.txt", 0o600)
open("new-mode.txt", "w").close()
os.chmod("new-mode.txt", 0o600)

open("cache.lock", "w")
open(os.environ["TMPDIR"] + "/a", "w")
tempfile.TemporaryFile()

# Other programs.
subprocess.run(["rm", "handed.txt"], check=True)
subprocess.run(["sed", "-i", "s/what/x/", "edited.txt"], cwd="d", check=True)
os.system("true; mv moved.txt elsewhere.txt")
"""


@dataclass(frozen=True)
class Kept:
    """The project after the script, and the inodes that old files had."""

    folder: Path
    done: Ended
    inodes: dict[str, int]

    def backup(self, kind: str, name: str, **fields: object) -> Path:
        """Where the only event of a kind for a file says that the old one is kept."""
        path = str(self.folder / name)
        return Path(self.done.one(kind, path=path, **fields)["backup"])


def _old(run: Runner, name: str = "old.txt") -> Path:
    path = run.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(OLD)
    return path


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """The one run of the script."""
    folder = tmp_path_factory.mktemp("outputs")
    temporary = folder / "temporary"
    temporary.mkdir()
    with runner(folder) as run:
        paths = {name: _old(run, name) for name in _OLD_FILES}
        paths["twice.txt"].chmod(0o640)
        paths["mode.txt"].chmod(0o644)
        run.file("other.txt", "other")
        (run.folder / "link.txt").symlink_to("behind-link.txt")
        (run.folder / "removed-link.txt").symlink_to("removed.txt")
        inodes = {name: path.stat().st_ino for name, path in paths.items()}
        environment = {"TMPDIR": str(temporary)}
        done = run(_SCRIPT, environment=environment, temporary=str(temporary))
        assert (done.code, done.out) == (0, "100\n"), done.explain()
        assert not done.of("problem")
        yield Kept(run.folder, done, inodes)


def test_an_old_file_that_is_emptied_is_renamed_aside(kept: Kept) -> None:
    path = kept.folder / "twice.txt"
    event = kept.done.one("open", path=str(path))
    assert (event["existed"], event["size"], event["how"]) == (True, len(OLD), "truncate")
    assert event["where"] == "train.py:5 in save"
    backup = Path(event["backup"])
    assert (backup.parent, backup.stat().st_ino) == (path.parent, kept.inodes["twice.txt"])
    assert backup.name.startswith(".twice.txt.rankup-")
    assert (backup.read_bytes(), path.read_bytes()) == (OLD, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("name", _OLD_FILES[1:7])
def test_every_way_to_empty_a_file_is_seen(kept: Kept, name: str) -> None:
    assert kept.backup("open", name).read_bytes() == OLD
    assert (kept.folder / name).read_bytes() != OLD


def test_an_appended_file_is_told_with_its_size_and_an_updated_one_copied(kept: Kept) -> None:
    event = kept.done.one("open", path=str(kept.folder / "appended.txt"))
    assert (event["how"], event["size"], event["backup"]) == ("append", len(OLD), None)
    assert (kept.folder / "appended.txt").read_bytes() == OLD + b"moremore"
    assert kept.backup("open", "updated.txt", how="update").read_bytes() == OLD
    assert (kept.folder / "updated.txt").read_bytes() == b"NEW" + OLD[3:]


def test_an_appended_file_is_still_kept_when_it_is_emptied_or_removed_later(kept: Kept) -> None:
    assert kept.backup("open", "late-emptied.txt", how="truncate").read_bytes() == OLD + b"+"
    assert kept.backup("remove", "late-removed.txt").read_bytes() == OLD + b"+"
    assert not (kept.folder / "late-removed.txt").exists()


def test_removed_files_links_and_folders_are_kept(kept: Kept) -> None:
    assert kept.backup("remove", "removed.txt").read_bytes() == OLD
    assert os.readlink(kept.backup("remove", "removed-link.txt")) == "removed.txt"
    assert not (kept.folder / "removed-link.txt").is_symlink()
    whole = kept.backup("remove", "runs", folder=True)
    assert sorted(path.name for path in whole.rglob("*.txt")) == ["1.txt", "2.txt"]
    assert (whole / "a/1.txt").read_bytes() == OLD
    # A folder that is emptied file by file can be removed, and is undone backwards.
    folder, file = kept.backup("remove", "emptied"), kept.backup("remove", "emptied/1.txt")
    assert (folder / file.name).read_bytes() == OLD


def test_what_the_run_itself_has_made_is_not_kept(kept: Kept) -> None:
    made = ("new.txt", "part", "whole", "made", "same.txt", "final-")
    for event in [*kept.done.of("open"), *kept.done.of("remove")]:
        name = str(Path(event["path"]).relative_to(kept.folder))
        assert not name.startswith(made) or not event["backup"], event
    rename = kept.done.one("rename", **{"from": str(kept.folder / "part")})
    assert (rename["to"], rename["made"]) == (str(kept.folder / "whole"), True)


def test_an_old_file_keeps_its_protection_under_a_new_name(kept: Kept) -> None:
    assert kept.done.one("rename", **{"from": str(kept.folder / "log.txt")})["made"] is False
    assert kept.backup("open", "renamed/log.1.txt").read_bytes() == OLD


def test_two_processes_keep_one_backup(kept: Kept) -> None:
    assert kept.backup("open", "shared.txt").read_bytes() == OLD


def test_threads_that_write_at_once_do_not_disturb_each_other(kept: Kept) -> None:
    renames = [one for one in kept.done.of("rename") if "/final-" in one["to"]]
    assert len(renames) == 100
    same = [one for one in kept.done.of("open") if one["path"] == str(kept.folder / "same.txt")]
    assert {one["how"] for one in same} == {"create"}  # told by each that came before it was there


def test_a_changed_mode_is_told_with_the_old_one(kept: Kept) -> None:
    event = kept.done.one("chmod")
    assert (event["path"], event["mode"]) == (str(kept.folder / "mode.txt"), 0o644)


def test_locks_and_temporary_files_are_left_alone(kept: Kept) -> None:
    told = {Path(one["path"]) for one in kept.done.of("open")}
    assert not [path for path in told if path.name == "cache.lock" or "temporary" in path.parts]
    assert (kept.folder / "cache.lock").stat().st_ino == kept.inodes["cache.lock"]


@pytest.mark.parametrize("name", ["handed.txt", "d/edited.txt", "moved.txt"])
def test_a_program_that_is_given_a_file_cannot_take_it_away(kept: Kept, name: str) -> None:
    assert kept.backup("handed", name).read_bytes() == OLD


def test_a_file_that_cannot_be_kept_is_not_touched(run: Runner) -> None:
    # In a user namespace root has no power over the files of this one.
    powerless: tuple[str, ...] = ("unshare", "--user")
    if subprocess.run(
        [*powerless, "true"], capture_output=True, timeout=60, check=False
    ).returncode:
        if os.getuid() == 0:
            pytest.skip("root may write to any folder, and user namespaces are not allowed")
        powerless = ()
    path = _old(run, "closed/old.txt")
    path.parent.chmod(0o500)
    try:
        done = run("open('closed/old.txt', 'w')\n", before=powerless)
    finally:
        path.parent.chmod(0o700)
    assert done.code == 1
    assert "PermissionError" in done.err
    assert "set the old file aside" in done.err
    assert path.read_bytes() == OLD
