"""Records of what was fetched: whole or absent, and what is gone is named."""

from __future__ import annotations

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


def test_torn_and_foreign_files_are_no_records(tmp_path: Path) -> None:
    path = record.write(tmp_path, _record(tmp_path))
    text = path.read_text()
    for bad in ("", text[:-20], "[]", "{}", text.replace('"namespace"', '"magic"'), "null"):
        path.write_text(bad)
        assert record.read(tmp_path) == []
    path.write_text(text.replace('"bytes": 3', '"bytes": "3"'))
    assert record.read(tmp_path) == []


def test_what_is_gone_or_changed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"abc")
    wanted = _record(file)
    assert wanted.missing() == []
    file.write_bytes(b"ab")
    assert wanted.missing() == [f"{file}: 2 bytes now, 3 when it was fetched"]
    file.unlink()
    assert wanted.missing() == [f"{file}: No such file or directory"]


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
