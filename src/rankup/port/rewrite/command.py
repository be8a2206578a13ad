"""`rankup port FILE`: rewrites, writes down, says what was done and what is left."""

from __future__ import annotations

import shlex
from pathlib import Path

from ...base.errors import UserError
from ...base.files import write_atomic
from ...base.text import clean, say
from ...script.source import read
from .context import Note
from .ported import Ported, port


def port_file(
    path: Path,
    *,
    batch: str,
    in_place: bool,
    diff: bool,
    sync_bn: bool,
    force: bool,
) -> None:
    """Port a script and write it beside itself or in its place; a diff is only printed.

    Args:
        force: overwrite a port that was edited.

    Raises:
        UserError: it cannot or must not be ported, or its port cannot be written.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder: name the script in it that trains")
    ported = port(path, batch=batch, sync_bn=sync_bn, in_place=in_place)
    if ported.why:
        say(f"{path.name}: nothing to do: {ported.why}", "")
        return
    if diff:
        print(ported.diff, end="")
    else:
        written = {one: _bytes(one) for one in ported.files}
        for one, data in written.items():
            if one.target.is_dir():
                raise UserError(f"{one.target} is a folder, where the port would be: move it away")
            if not (in_place or force):
                _refuse_edited(one.path, one.target, data)
        for one, data in reversed(written.items()):  # the script last: it imports the others
            _write(one.target, data)
        for one in written:
            print(f"wrote {clean(str(one.target))}")
    for line in report(ported):
        # A diff can be piped into `patch`; what is said about it goes past it.
        say(line, "") if diff else print(clean(line))


def _refuse_edited(path: Path, target: Path, data: bytes) -> None:
    """Raise UserError where a port is there that is not what port would write."""
    if not target.exists() or target.read_bytes() == data:
        return
    raise UserError(
        f"{clean(str(target))} is there and is not what port would write: it was edited, it is the "
        f"port for another script, or {clean(path.name)} has changed since; --force overwrites it, "
        "--diff shows the port without writing it. A module of two scripts may need another port "
        "for each: port them in copies of the folder"
    )


def _write(target: Path, data: bytes) -> None:
    try:
        mode = target.stat().st_mode if target.exists() else None
        write_atomic(target, data)
        if mode is not None:
            target.chmod(mode & 0o7777)
    except OSError as error:
        raise UserError(
            f"{target} could not be written: {error.strerror}; nothing was changed"
        ) from None


def report(ported: Ported) -> list[str]:
    """The lines that say, by lines of the originals, what was done and what is left."""
    done = [(one, note) for one in ported.files for note in one.done]
    left = [(one, note) for one in ported.files for note in one.left]
    lines = [f"done ({len(done)}):"]
    lines += [f"  {_at(ported, *one)}  {one[1].text}" for one in done]
    if left:
        lines.append(f"for you to look at ({len(left)}):")
        lines += [f"  {_at(ported, *one)}  {one[1].text}" for one in left]
    target = shlex.quote(str(ported.target))
    in_place = ported.target == ported.path
    after = "" if in_place else f"; rankup verify {shlex.quote(str(ported.path))} {target}"
    lines.append(f"next: rankup check {target}{after}")
    return lines


def _at(ported: Ported, one: Ported, note: Note) -> str:
    """The place of a note: its line, of a module with the name of the file."""
    if one is not ported:
        return f"{one.path.name}:{note.line}" if note.line else one.path.name
    return f"line {note.line:<4}" if note.line else " " * 9


def _bytes(ported: Ported) -> bytes:
    """In the encoding of the original, with its byte order mark."""
    file = read(ported.path)
    mark = b"\xef\xbb\xbf" if file.data.startswith(b"\xef\xbb\xbf") else b""
    encoding = "utf-8" if mark else file.encoding
    return mark + ported.text.encode(encoding)
