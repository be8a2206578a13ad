"""Records of what was fetched: whole or absent; what is gone, or listed and not here, is named."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.login import record
from rankup.login.record import Item, Record, key_of_url
from rankup.site.config import Config, Needs, Url


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
    wrong_types = ('{"key": 5, "items": []}', '{"key": "a", "items": [], "variables": {"A": 5}}')
    wrong_size = re.sub(r'"bytes": \d+', '"bytes": "3"', text)
    assert wrong_size != text
    for bad in ("", text[:-20], "[]", "{}", "null", *wrong_types, wrong_size):
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"abc")
    return path


def _config(tmp_path: Path, **values: object) -> Config:
    return Config(file=tmp_path / "rankup.toml", fetch=Needs(**values))  # type: ignore[arg-type]


def unmet(config: Config) -> list[str]:
    """The lines of what is not there."""
    return [str(one) for one in record.unmet(config)]


def _fetched(key: str, file: Path, **changes: object) -> Record:
    item = Item("x", "https://h/x", str(file), 3, sha256="a" * 64)
    return replace(Record(key, "2026-11-20", (item,)), **changes)  # type: ignore[arg-type]


def test_names_without_a_record_are_given_with_their_command(tmp_path: Path, file: Path) -> None:
    needed = _config(tmp_path, datasets=("xsum", "a b"), models=("gpt2@main",))
    assert unmet(needed) == [
        "dataset xsum: not fetched; rankup fetch --dataset xsum",
        "dataset a b: not fetched; rankup fetch --dataset 'a b'",
        "model gpt2@main: not fetched; rankup fetch --model gpt2@main",
    ]
    record.write(tmp_path, _fetched("dataset:xsum", file))
    record.write(tmp_path, _fetched("model:gpt2@main", file))
    assert [line.partition(":")[0] for line in unmet(needed)] == ["dataset a b"]


def test_what_is_gone_or_has_changed_is_needed_again(tmp_path: Path, file: Path) -> None:
    needed = _config(tmp_path, models=("gpt2",))
    record.write(tmp_path, _fetched("model:gpt2", file))
    assert unmet(needed) == []
    file.write_bytes(b"abcd")
    assert unmet(needed) == [
        f"model gpt2: {file} has 4 bytes now, and had 3 when it was fetched; "
        "rankup fetch --model gpt2"
    ]
    file.unlink()
    (line,) = unmet(needed)
    assert f"{file} is gone" in line


def test_a_file_of_the_web_counts_for_its_url_place_and_checksum(
    tmp_path: Path, file: Path
) -> None:
    url = Url("https://me:pw@h/x?key=pw", "a" * 64)
    record.write(tmp_path, _fetched(key_of_url(url), file))
    assert unmet(_config(tmp_path, urls=(url,))) == []
    others = (
        replace(url, sha256="b" * 64),
        replace(url, url="https://h/x?key=other"),
        replace(url, to=tmp_path / "there"),
    )
    for other in others:
        (line,) = unmet(_config(tmp_path, urls=(other,)))
        assert line.startswith("https://h/x")
        assert line.endswith("; rankup fetch")
        assert "pw" not in line


def test_a_script_counts_when_it_was_proved_with_just_these_arguments(
    tmp_path: Path, file: Path
) -> None:
    (tmp_path / "train.py").touch()
    needed = _config(tmp_path, scripts=("train.py --name 'two words'",))
    key = record.script_key(tmp_path / "train.py", ("--name", "two words"))
    command = "rankup fetch train.py --name 'two words'"
    assert unmet(needed) == [f"script train.py --name 'two words': not fetched; {command}"]
    record.write(tmp_path, _fetched(key, file, proof="failed", note="no vocab.txt"))
    assert "train.py did not start without a network (no vocab.txt)" in unmet(needed)[0]
    record.write(tmp_path, _fetched(key, file, proof="none", note="never trained"))
    assert "that it starts without a network was not proved (never trained)" in unmet(needed)[0]
    for proof in ("namespace", "blocked"):
        record.write(tmp_path, _fetched(key, file, proof=proof))
        assert unmet(needed) == []


def test_a_line_that_is_no_command_is_named(tmp_path: Path) -> None:
    for bad in ("train.py 'x", " "):
        (line,) = unmet(_config(tmp_path, scripts=(bad,)))
        assert line.startswith(f"fetch.scripts[0] in {tmp_path}/rankup.toml: ")


def test_a_script_that_is_not_there_is_named_by_its_entry(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    lines = unmet(_config(tmp_path, scripts=("a.py", "sub/s11.py --x")))
    assert lines == [
        "script a.py: not fetched; rankup fetch a.py",
        f"fetch.scripts[1] in {tmp_path}/rankup.toml: no such file: sub/s11.py; mend it there",
    ]


def test_a_secret_among_the_arguments_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    [line] = unmet(_config(tmp_path, scripts=("a.py --hf-token hunter2 --lr 1",)))
    assert line == "script a.py --hf-token ... --lr 1: not fetched; rankup fetch"
    key = record.script_key(tmp_path / "a.py", ("--hf-token", "hunter2"))
    assert "hunter2" not in key
    assert key != record.script_key(tmp_path / "a.py", ("--hf-token", "hunter3"))
