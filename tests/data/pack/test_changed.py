"""What is packed changes, or cannot be read, while it is packed."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from rankup.data.pack import journal, write

from .made import request, run, small_units, tree


@pytest.mark.parametrize(
    ("container", "what"),
    [
        *(("tar", what) for what in ("changed", "touched", "gone", "pipe")),
        *(("squashfs", what) for what in ("grown", "folder")),
    ],
)
def test_a_source_that_changes_is_named(
    tmp_path: Path,
    container: str,
    what: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tree(tmp_path / "source", 40)
    victims = [source / "train" / "class0" / f"{number:06d}.txt" for number in (3, 33)]
    for victim in victims:
        victim.write_bytes(b"before")
    asked = request(source, tmp_path, container, workers=2)
    real = journal.Pack.make

    def make(*args: Any) -> None:
        real(*args)
        for victim in victims:
            if what == "changed":
                victim.write_bytes(b"x")
            elif what == "grown":
                victim.write_bytes(b"before and after")
            elif what == "touched":
                about = victim.stat()
                victim.write_bytes(b"BEFORE")
                os.utime(victim, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
            elif what == "gone":
                victim.unlink()
            else:
                victim.unlink()
                victim.mkdir() if what == "folder" else os.mkfifo(victim)

    monkeypatch.setattr(journal.Pack, "make", make)
    assert run(asked) == 1
    said = capsys.readouterr().err
    assert str(victims[0]) in said
    # A stream ends where it cannot go on; elsewhere all are named that were found.
    assert str(victims[1]) in said or container == "squashfs"
    assert ("is no longer there" if what == "gone" else "has changed") in said
    assert not Path(asked.out).exists()


@pytest.mark.parametrize("call", ["open", "preadv"])
def test_a_source_that_cannot_be_read_is_named(
    tmp_path: Path,
    call: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tree(tmp_path / "source", 10)
    real = getattr(os, call)

    def fails(*args: Any, **kwargs: Any) -> Any:
        if call == "preadv" or os.fsencode(args[0]).endswith(b"000003.txt"):
            raise OSError(errno.EIO, "Input/output error")
        return real(*args, **kwargs)

    begin = journal.begin

    def begun(*args: Any, **kwargs: Any) -> Any:
        layout = begin(*args, **kwargs)
        monkeypatch.setattr(os, call, fails)
        return layout

    monkeypatch.setattr(journal, "begin", begun)
    assert run(request(source, tmp_path, "tar")) == 1
    monkeypatch.undo()
    said = capsys.readouterr().err
    # With preadv no file can be read, and which ones were tried first differs.
    name = "class0/000003" if call == "open" else r"class\d/\d+"
    path = rf"{re.escape(str(source))}/train/{name}\.txt"
    assert re.search(f"{path} cannot be read: Input/output error", said)


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_container_that_changes_is_named(
    tmp_path: Path,
    source: Path,
    when: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = request(source, tmp_path, "hdf5")
    assert run(first) == 0
    asked = request(Path(first.out), tmp_path / "next", "tar", workers=1)
    place, name = (journal.Pack, "make") if when == "before" else (write.Copier, "unit")
    real = getattr(place, name)

    def touches(*args: Any, **kwargs: Any) -> Any:
        if when == "before" or args[1] == 3:
            os.utime(first.out)
        return real(*args, **kwargs)

    monkeypatch.setattr(place, name, touches)
    with small_units():
        assert run(asked) == 1
    said = capsys.readouterr().err
    assert f"{first.out} has changed since it was scanned" in said
    assert "Traceback" not in said
    assert not Path(asked.out).exists()
