"""What a script would overwrite or remove is kept beside it, and named before anything is done."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from .running import Ended, Runner

OLD = b"what was there before"


def _old(run: Runner, name: str = "old.txt") -> Path:
    path = run.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(OLD)
    return path


def _backup(done: Ended, kind: str, path: Path) -> Path:
    return Path(done.one(kind, path=str(path))["backup"])


def test_an_old_file_that_is_emptied_is_renamed_aside(run: Runner) -> None:
    path = _old(run)
    path.chmod(0o640)
    inode = path.stat().st_ino
    done = run("""\
        def save():
            with open("old.txt", "w") as file:
                file.write("new")
        save()
        save()
        """)
    event = done.one("open", path=str(path))
    assert (event["existed"], event["size"], event["how"]) == (True, len(OLD), "truncate")
    assert event["where"] == "train.py:2 in save"
    backup = Path(event["backup"])
    assert (backup.parent, backup.stat().st_ino) == (path.parent, inode)
    assert backup.name.startswith(".old.txt.rankup-")
    assert (backup.read_bytes(), path.read_bytes()) == (OLD, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "statement",
    [
        "os.close(os.open('old.txt', os.O_WRONLY | os.O_TRUNC))",
        "pathlib.Path('old.txt').write_text('new')",
        "pathlib.Path('link.txt').write_text('new')",
        "shutil.copyfile('other.txt', 'old.txt')",
        "gzip.open('old.txt', 'w').close()",
        "subprocess.run([sys.executable, '-c', 'open(\"old.txt\", \"w\")'], check=True)",
    ],
)
def test_every_way_to_empty_a_file_is_seen(run: Runner, statement: str) -> None:
    path = _old(run)
    run.file("other.txt", "other")
    (run.folder / "link.txt").symlink_to("old.txt")
    done = run(f"import gzip, os, pathlib, shutil, subprocess, sys\n{statement}\n")
    assert done.code == 0, done.explain()
    assert _backup(done, "open", path).read_bytes() == OLD
    assert path.read_bytes() != OLD


def test_an_appended_file_is_told_with_its_size(run: Runner) -> None:
    path = _old(run)
    done = run("for _ in range(2):\n    open('old.txt', 'a').write('more')\n")
    event = done.one("open")
    assert (event["how"], event["size"], event["backup"]) == ("append", len(OLD), None)
    assert path.read_bytes() == OLD + b"moremore"


def test_a_file_that_is_updated_in_place_is_copied_first(run: Runner) -> None:
    path = _old(run)
    done = run("with open('old.txt', 'r+') as file:\n    file.write('NEW')\n")
    assert done.one("open")["how"] == "update"
    assert _backup(done, "open", path).read_bytes() == OLD
    assert path.read_bytes() == b"NEW" + OLD[3:]


def test_an_appended_file_is_still_kept_when_it_is_emptied_or_removed_later(run: Runner) -> None:
    emptied, removed = _old(run, "a.txt"), _old(run, "b.txt")
    done = run("""\
        import os
        for name in "a.txt", "b.txt":
            open(name, "a").write("+")
        open("a.txt", "w")
        os.remove("b.txt")
        """)
    kept = Path(done.one("open", path=str(emptied), how="truncate")["backup"])
    assert kept.read_bytes() == OLD + b"+"
    assert _backup(done, "remove", removed).read_bytes() == OLD + b"+"
    assert not removed.exists()


def test_a_removed_file_and_a_removed_link_are_kept(run: Runner) -> None:
    path = _old(run)
    link = run.folder / "link.txt"
    link.symlink_to("old.txt")
    done = run("import os\nos.remove('link.txt')\nos.unlink('old.txt')\n")
    assert done.code == 0, done.explain()
    assert not path.exists()
    assert not link.is_symlink()
    assert _backup(done, "remove", path).read_bytes() == OLD
    assert os.readlink(_backup(done, "remove", link)) == "old.txt"


def test_a_removed_folder_is_kept_whole(run: Runner) -> None:
    _old(run, "runs/a/1.txt")
    _old(run, "runs/2.txt")
    done = run("""\
        import os, shutil
        shutil.rmtree("runs")
        assert not os.path.exists("runs")
        os.makedirs("runs/new")
        open("runs/new/log.txt", "w")
        """)
    assert done.code == 0, done.explain()
    event = done.one("remove")
    assert (event["path"], event["folder"]) == (str(run.folder / "runs"), True)
    backup = Path(event["backup"])
    assert sorted(p.name for p in backup.rglob("*.txt")) == ["1.txt", "2.txt"]
    assert (backup / "a/1.txt").read_bytes() == OLD


def test_a_folder_that_is_emptied_file_by_file_can_be_removed(run: Runner) -> None:
    path = _old(run, "runs/1.txt")
    done = run("""\
        import os
        os.remove("runs/1.txt")
        os.rmdir("runs")
        print(os.path.exists("runs"))
        """)
    assert done.out == "False\n", done.explain()
    file, folder = done.of("remove")
    assert (file["path"], folder["path"]) == (str(path), str(path.parent))
    # Undone backwards: first the folder comes back, and with it the file's backup.
    os.rename(folder["backup"], folder["path"])
    os.rename(file["backup"], file["path"])
    assert path.read_bytes() == OLD


def test_what_the_run_itself_has_made_is_not_kept(run: Runner) -> None:
    done = run("""\
        import os, shutil, subprocess, sys
        for _ in range(2):
            open("new.txt", "w").write("x")
        os.remove("new.txt")
        os.makedirs("part/deep")
        open("part/deep/a.txt", "w").write("x")
        os.rename("part", "whole")
        open("whole/deep/a.txt", "w")
        shutil.rmtree("whole")
        subprocess.run([sys.executable, "-c", "open('child.txt', 'w').write('x')"], check=True)
        open("child.txt", "w").write("y")
        os.symlink("child.txt", "link")
        os.remove("link")
        """)
    assert done.code == 0, done.explain()
    assert [one["backup"] for one in [*done.of("open"), *done.of("remove")] if one["backup"]] == []
    rename = done.one("rename")
    assert (rename["from"], rename["to"], rename["made"]) == (
        str(run.folder / "part"),
        str(run.folder / "whole"),
        True,
    )
    assert not list(run.folder.glob(".*rankup*"))


def test_an_old_file_keeps_its_protection_under_a_new_name(run: Runner) -> None:
    _old(run, "log.txt")
    done = run("""\
        import os
        os.mkdir("new")
        os.rename("log.txt", "new/log.1.txt")
        open("new/log.1.txt", "w")
        """)
    assert done.one("rename")["made"] is False
    assert _backup(done, "open", run.folder / "new/log.1.txt").read_bytes() == OLD


def test_two_processes_keep_one_backup(run: Runner) -> None:
    path = _old(run)
    done = run("""\
        import multiprocessing
        def work(_):
            open("old.txt", "w").write("worker")
        open("old.txt", "w").write("main")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(work, range(4))
        """)
    assert _backup(done, "open", path).read_bytes() == OLD


def test_a_file_that_cannot_be_kept_is_not_touched(run: Runner) -> None:
    # In a user namespace root has no power over the files of this one.
    powerless: tuple[str, ...] = ("unshare", "--user")
    if subprocess.run(
        [*powerless, "true"], capture_output=True, timeout=30, check=False
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


def test_locks_and_temporary_files_are_left_alone(run: Runner, tmp_path: Path) -> None:
    lock = _old(run, "cache.lock")
    inode = lock.stat().st_ino
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = run(
        f"""\
        import os, tempfile
        open("cache.lock", "w")
        open("{temporary}/a", "w")
        tempfile.TemporaryFile()
        """,
        environment={"TMPDIR": str(temporary)},
        temporary=str(temporary),
    )
    assert done.code == 0, done.explain()
    assert not done.of("open")
    assert lock.stat().st_ino == inode


def test_files_written_by_torch_and_safetensors_in_their_own_languages_are_kept(
    run: Runner,
) -> None:
    paths = [_old(run, name) for name in ("model.pt", "model.safetensors")]
    done = run("""\
        import torch
        from safetensors.torch import save_file
        torch.save({"a": torch.zeros(2)}, "model.pt")
        save_file({"a": torch.zeros(2)}, "model.safetensors")
        print(torch.load("model.pt")["a"].tolist())
        """)
    assert done.out == "[0.0, 0.0]\n", done.explain()
    for path in paths:
        assert _backup(done, "open", path).read_bytes() == OLD
    assert not done.of("problem")


def test_threads_that_write_at_once_do_not_disturb_each_other(run: Runner) -> None:
    done = run("""\
        from concurrent.futures import ThreadPoolExecutor
        import os
        def work(number):
            for name in f"{number}.txt", "same.txt":
                with open(name, "a") as file:
                    file.write("x")
            os.replace(f"{number}.txt", f"final-{number}.txt")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(100)))
        print(len(open("same.txt").read()))
        """)
    assert done.out == "100\n", done.explain()
    assert len(done.of("rename")) == 100
    same = [one for one in done.of("open") if one["path"] == str(run.folder / "same.txt")]
    assert {one["how"] for one in same} == {"create"}  # told by each that came before it was there


def test_a_changed_mode_is_told_with_the_old_one(run: Runner) -> None:
    path = _old(run)
    path.chmod(0o644)
    done = run("""\
        import os
        os.chmod("old.txt", 0o600)
        open("new.txt", "w").close()
        os.chmod("new.txt", 0o600)
        """)
    event = done.one("chmod")
    assert (event["path"], event["mode"]) == (str(path), 0o644)


def test_a_program_that_is_given_a_file_cannot_take_it_away(run: Runner) -> None:
    paths = [_old(run, name) for name in ("a.txt", "d/b.txt", "c.txt")]
    done = run("""\
        import os, subprocess
        subprocess.run(["rm", "a.txt"], check=True)
        subprocess.run(["sed", "-i", "s/what/x/", "b.txt"], cwd="d", check=True)
        os.system("true; mv c.txt moved.txt")
        """)
    for path in paths:
        assert _backup(done, "handed", path).read_bytes() == OLD
