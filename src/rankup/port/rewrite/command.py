"""`rankup port FILE`: rewrites, writes down, says what was done and what is left."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path

from ...base.errors import UserError
from ...base.files import write_atomic
from ...base.text import clean, say
from ...script.source import read
from .context import Note
from .ported import Ported, port

# The comment at the head of a port, below what has to stand first in a file.
_VERDICT = re.compile(rb"# rankup verify: [^\r\n]*\r?\n(?:#   [^\r\n]*\r?\n)*")
_FIRST = re.compile(rb"(?:#![^\r\n]*\r?\n)?(?:#[^\r\n]*coding[:=][^\r\n]*\r?\n)?")
_WIDTH = 100


def port_file(
    path: Path,
    *,
    batch: str,
    in_place: bool,
    diff: bool,
    sync_bn: bool,
    force: bool,
    judge: Callable[[Ported], str] | None = None,
) -> str:
    """Port a script and write it beside itself or in its place; a diff is only printed.

    Args:
        force: overwrite a port that was edited.
        judge: gives the verdict on a port, which is written at its head; None: it is not verified.

    Returns:
        The verdict; empty where there is none.

    Raises:
        UserError: it cannot or must not be ported, or its port cannot be written.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder: name the script in it that trains")
    ported = port(path, batch=batch, sync_bn=sync_bn, in_place=in_place)
    if ported.why:
        say(f"{path.name}: nothing to do: {ported.why}", "")
        return ""
    verdict = ""
    if diff:
        print(ported.diff, end="")
    else:
        written = {one: _bytes(one) for one in ported.files}
        for one, data in written.items():
            if one.target.is_dir():
                raise UserError(f"{one.target} is a folder, where the port would be: move it away")
            if not (in_place or force):
                _refuse_edited(one.path, one.target, data)
        if judge is not None:
            verdict = judge(ported)
            written[ported] = _with_verdict(written[ported], verdict)
        for one, data in reversed(written.items()):  # the script last: it imports the others
            _write(one.target, data)
        for one in written:
            print(f"wrote {clean(str(one.target))}")
    for line in report(ported, verdict):
        # A diff can be piped into `patch`; what is said about it goes past it.
        say(line, "") if diff else print(clean(line))
    return verdict


def _with_verdict(data: bytes, verdict: str) -> bytes:
    """A port with a comment at its head that says what its verification came to."""
    lines = textwrap.wrap(f"rankup verify: {verdict}", _WIDTH - 4, break_on_hyphens=False)
    end = b"\r\n" if b"\r\n" in data else b"\n"
    comment = end.join(f"# {one}".encode() for one in ("\n  ".join(lines)).split("\n")) + end
    mark = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    first = _FIRST.match(data, mark)
    place = first.end() if first else mark
    return data[:place] + comment + data[place:]


def _without_verdict(data: bytes) -> bytes:
    """A port without that comment."""
    return _VERDICT.sub(b"", data, count=1)


def _refuse_edited(path: Path, target: Path, data: bytes) -> None:
    """Raise UserError where a port is there that is not what port would write."""
    if not target.exists() or _without_verdict(target.read_bytes()) == data:
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


def report(ported: Ported, verdict: str = "") -> list[str]:
    """The lines that say, by lines of the originals, what was done and what is left."""
    done = [(one, note) for one in ported.files for note in one.done]
    left = [(one, note) for one in ported.files for note in one.left]
    lines = [f"verdict: {verdict}"] if verdict else []
    lines.append(f"done ({len(done)}):")
    lines += [f"  {_at(ported, *one)}  {one[1].text}" for one in done]
    if left:
        lines.append(f"for you to look at ({len(left)}):")
        lines += [f"  {_at(ported, *one)}  {one[1].text}" for one in left]
    target = shlex.quote(str(ported.target))
    if ported.target == ported.path or verdict.startswith("the same run"):
        after = ""
    else:
        after = f"; rankup verify {shlex.quote(str(ported.path))} {target}"
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
