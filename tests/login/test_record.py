"""Records of what was fetched: whole or absent, and what is gone is named."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rankup.login import record
from rankup.login.record import Item, Record


def _record(path: Path, key: str = "model:gpt2", at: str = "2026-01-01") -> Record:
    item = Item("gpt2", "https://huggingface.co/gpt2", str(path), 3, revision="abc")
    return Record(key, at, (item,), {"HF_HOME": "/c"}, {"HF_HUB_OFFLINE": "1"}, "namespace")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    wanted = _record(tmp_path / "x")
    record.write(tmp_path, wanted)
    assert record.read(tmp_path) == [wanted]
    assert record.find(tmp_path, "model:gpt2") == wanted
    assert record.find(tmp_path, "model:gpt3") is None
    record.write(tmp_path, _record(tmp_path / "y"))  # takes the older one's place
    assert [one.items[0].path for one in record.read(tmp_path)] == [str(tmp_path / "y")]
    assert (tmp_path / ".rankup" / ".gitignore").read_text() == "*\n"


def test_names_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"tr\xff.py")
    wanted = _record(tmp_path / name, record.script_key(tmp_path / name, ()))
    record.write(tmp_path, wanted)
    assert record.find(tmp_path, wanted.key) == wanted


def test_torn_and_foreign_files_are_no_records(tmp_path: Path) -> None:
    path = record.write(tmp_path, _record(tmp_path))
    text = path.read_text()
    for bad in ("", text[:-20], "[]", "{}", "null"):
        path.write_text(bad)
        assert record.read(tmp_path) == []


def test_what_is_gone_or_changed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    wanted = _record(file)
    assert wanted.missing() == []
    file.write_bytes(b"ab")
    assert wanted.missing() == [f"{file} has 2 bytes now, and had 3 when it was fetched"]
    file.unlink()
    assert wanted.missing() == [f"{file} is gone"]


def test_a_script_is_found_by_its_arguments_else_the_newest(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    assert record.of_script(tmp_path, script, ()) == (None, False)
    for at, args in (("1", ("--a",)), ("3", ("--b",)), ("2", ())):
        record.write(tmp_path, _record(script, record.script_key(script, args), at))
    record.write(tmp_path, _record(script, record.script_key(tmp_path / "train.pyx", ()), "9"))
    found, exact = record.of_script(tmp_path, script, ("--a",))
    assert (found and found.at, exact) == ("1", True)
    found, exact = record.of_script(tmp_path, script, ("--c",))
    assert (found and found.at, exact) == ("3", False)


def test_a_start_that_failed_says_nothing_of_other_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    failed = replace(_record(script, record.script_key(script, ("--typo",)), "9"), proof="none")
    record.write(tmp_path, failed)
    assert record.of_script(tmp_path, script, ("--lr",)) == (None, False)
    assert record.of_script(tmp_path, script, ("--typo",)) == (failed, True)
    proved = _record(script, record.script_key(script, ()), "1")
    record.write(tmp_path, proved)
    assert record.of_script(tmp_path, script, ("--lr",)) == (proved, False)


def test_a_script_is_also_found_where_it_was_fetched_from(tmp_path: Path) -> None:
    script = tmp_path / "s" / "t.py"
    script.parent.mkdir()
    one = _record(script, record.script_key(script, ()))
    record.write(script.parent, one)
    assert record.of_script(tmp_path, script, ()) == (one, True)
    newer = replace(one, at="2026-02-02")
    record.write(tmp_path, newer)
    assert record.of_script(tmp_path, script, ()) == (newer, True), "the project's comes first"


def test_an_edit_of_the_script_or_of_its_modules_is_a_doubt(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nfrom model import Net\n")
    (tmp_path / "model.py").write_text("class Net: ...\n")
    (tmp_path / "other.py").write_text("")
    digests = record.code_of(script)
    assert {Path(path).name for path in digests} == {"train.py", "model.py"}
    one = Record(record.script_key(script, ()), "1", (), proof="namespace", code=digests)
    assert one.doubts() == []
    (tmp_path / "other.py").write_text("x = 1\n")
    assert one.doubts() == []
    (tmp_path / "model.py").write_text("class Net: x = 1\n")
    assert one.doubts() == ["changed since it was fetched: model.py"]
    script.unlink()
    assert one.doubts() == ["changed since it was fetched: train.py, model.py"]
    assert one.faults() == [], "no reason to refuse a job"


def test_a_record_cannot_make_anybody_wait_or_read_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    names = (str(tmp_path / "pipe"), "/dev/zero", "/", "\0")
    one = Record(record.script_key(tmp_path / "x.py", ()), "1", code=dict.fromkeys(names, "a"))
    assert record.code_changed(one.code) == list(names)
    assert len(one.doubts()) == 2


def test_a_script_that_is_no_python_is_known_by_itself(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = = 1\n")
    assert list(record.code_of(script)) == [str(script)]


def test_what_was_proved_outlasts_a_start_that_showed_nothing(tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "data"
    script.touch()
    file.write_bytes(b"abc")
    old = replace(_record(file, record.script_key(script, ())), code=record.code_of(script))
    limited = replace(old, items=(), proof="none", note="stopped after 3 s")
    assert old.outlasts(limited)
    assert not old.outlasts(replace(limited, proof="failed")), "which shows that it is not enough"
    assert not limited.outlasts(limited)
    script.write_text("changed")
    assert not old.outlasts(limited)
    script.write_text("")
    assert old.outlasts(limited)
    file.unlink()
    assert not old.outlasts(limited)


def test_a_command_can_be_copied_where_nothing_is_hidden() -> None:
    line = record.command_line(["rankup", "fetch", "a b.py", "$(x)"])
    assert line == "rankup fetch 'a b.py' '$(x)'"
    assert record.command_line(["--password", "x y", "-v"]) == "--password ... -v"
