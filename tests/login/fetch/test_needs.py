"""What a project lists and has not got is named, with the command that fetches it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankup.login import record
from rankup.login.record import Item, Record, key_of_url
from rankup.site.config import Config
from rankup.site.needs import Needs, Url


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


def _record(key: str, file: Path, **changes: object) -> Record:
    item = Item("x", "https://h/x", str(file), 3, sha256="a" * 64)
    return replace(Record(key, "2026-11-20", (item,)), **changes)  # type: ignore[arg-type]


def test_names_without_a_record_are_given_with_their_command(tmp_path: Path, file: Path) -> None:
    needed = _config(tmp_path, datasets=("xsum", "a b"), models=("gpt2@main",))
    assert unmet(needed) == [
        "dataset xsum: not fetched; rankup fetch --dataset xsum",
        "dataset a b: not fetched; rankup fetch --dataset 'a b'",
        "model gpt2@main: not fetched; rankup fetch --model gpt2@main",
    ]
    record.write(tmp_path, _record("dataset:xsum", file))
    record.write(tmp_path, _record("model:gpt2@main", file))
    assert [line.partition(":")[0] for line in unmet(needed)] == ["dataset a b"]


def test_what_is_gone_or_has_changed_is_needed_again(tmp_path: Path, file: Path) -> None:
    needed = _config(tmp_path, models=("gpt2",))
    record.write(tmp_path, _record("model:gpt2", file))
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
    record.write(tmp_path, _record(key_of_url(url), file))
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
    record.write(tmp_path, _record(key, file, proof="failed", note="no vocab.txt"))
    assert "train.py did not start without a network (no vocab.txt)" in unmet(needed)[0]
    record.write(tmp_path, _record(key, file, proof="none", note="never trained"))
    assert "that it starts without a network was not proved (never trained)" in unmet(needed)[0]
    for proof in ("namespace", "blocked"):
        record.write(tmp_path, _record(key, file, proof=proof))
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
