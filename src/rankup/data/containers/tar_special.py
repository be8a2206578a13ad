"""What a tar holds beside files: headers that say more of the next member, folders, links."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .. import keys as safe_keys
from ..errors import BadContainer
from .member_names import hidden, plain
from .tar_headers import BLOCK, KEY, padded

# Members of less than this lie so near to each other that many headers come with one read.
_NEAR = 32 << 10
_WIDE = 256 << 10
_NARROW = 4 << 10
_LARGEST = 1 << 20  # of a PAX header or a long name; both hold a path or two
_PASSED = {b"5": "folders", b"V": "volume labels"}
# Data of other programs behind a header of their own: access lists, attributes, inode tables.
_FOREIGN = (b"A", b"E", b"I", b"D", b"N")


@dataclass
class Members:
    """Regular members in their order.

    Attributes:
        names: relative paths, each once.
        offsets, lengths: of their bytes.
        keys: row -> the true key, where rankup has written it under another name.
        small: row -> its bytes, of members that end as asked and were read with their header.
        passed: what -> how many that are no members.
    """

    names: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    keys: dict[int, bytes] = field(default_factory=dict)
    small: dict[int, bytes] = field(default_factory=dict)
    passed: Counter[str] = field(default_factory=Counter)


@dataclass
class Next:
    """What extension headers say of the member behind them."""

    path: bytes | None = None
    link: bytes | None = None
    size: int | None = None
    key: bytes | None = None


class Tar:
    """A tar that is walked through: reads many headers at a time where they lie near."""

    def __init__(self, descriptor: int, size: int, where: str) -> None:
        self.descriptor, self.size, self.where = descriptor, size, where
        self.window, self.begin = b"", 0

    def block(self, at: int) -> bytes:
        """The header at a place, and into the window what lies behind it."""
        start = at - self.begin
        block = self.window[start : start + BLOCK] if start >= 0 else b""
        if len(block) == BLOCK:
            return block
        jump = at - (self.begin + len(self.window))
        self.window = os.pread(self.descriptor, _WIDE if jump < _NEAR else _NARROW, at)
        self.begin = at
        return self.window[:BLOCK]

    def read(self, at: int, length: int) -> bytes:
        start = at - self.begin
        found = self.window[start : start + length] if start >= 0 else b""
        return found if len(found) == length else os.pread(self.descriptor, length, at)

    def bad(self, at: int, why: str) -> BadContainer:
        return BadContainer(f"{self.where}: {why} (header at byte {at})")


def name_of(block: bytes) -> bytes:
    """The name that a header has room for."""
    name = block[:100].partition(b"\0")[0]
    if block[345] and block[257:263] == b"ustar\0":
        prefix = block[345:500]
        if block[508:512] == b"tar\0":  # star keeps times behind a shorter one
            prefix = prefix[:131]
        return prefix.partition(b"\0")[0] + b"/" + name
    return name


def other(
    tar: Tar,
    at: int,
    kind: bytes,
    block: bytes,
    length: int,
    says: Next | None,
    found: Members,
    rows: dict[bytes, int],
) -> tuple[int, Next | None]:
    """What is no file: bytes behind its header, and what it says of the next member."""
    name = name_of(block) if says is None or says.path is None else says.path
    if kind in (b"x", b"X", b"L", b"K", b"g"):
        if length > _LARGEST:
            raise tar.bad(at, f"an extension header of {length} bytes: a damaged tar")
        if at + BLOCK + length > tar.size:
            raise tar.bad(at, "an extension header ends behind the end of the file: cut short")
        body = tar.read(at + BLOCK, length)
        if kind != b"g":
            says = _extended(tar, at, kind, body, says or Next())
        elif any(keyword in (b"path", b"size", KEY) for keyword, _ in _records(tar, at, body)):
            raise tar.bad(at, "a global header gives all members one name or size")
        return padded(length), says
    if kind in _PASSED:
        if kind == b"5" and name.strip(b"/.") and not safe_keys.safe(plain(name)):
            safe_keys.check(plain(name), tar.where)
        found.passed[_PASSED[kind]] += 1
        return 0, None
    if kind in (b"1", b"2"):
        target = block[157:257].partition(b"\0")[0]
        if says is not None and says.link is not None:
            target = says.link
        _link(tar, at, kind, plain(name), target, length, found, rows)
        return 0, None
    if kind in _FOREIGN:
        found.passed["records of other programs"] += 1
        if at + BLOCK + length > tar.size:
            raise tar.bad(at, "a record ends behind the end of the file: cut short")
        return padded(length), None
    known = {b"3": "a device", b"4": "a device", b"6": "a pipe", b"S": "a sparse file"}
    what = known.get(kind, f"of type {kind!r}")
    advice = "pack it without --sparse" if kind == b"S" else "pack the tar again without it"
    raise tar.bad(at, f"{safe_keys.shown(name)} is {what}, which is no data: {advice}")


def _extended(tar: Tar, at: int, kind: bytes, body: bytes, says: Next) -> Next:
    if kind == b"L":
        says.path = body.partition(b"\0")[0]
        return says
    if kind == b"K":
        says.link = body.partition(b"\0")[0]
        return says
    for keyword, value in _records(tar, at, body):
        if keyword == b"path":
            says.path = value
        elif keyword == b"linkpath":
            says.link = value
        elif keyword == b"size":
            if not value.isdigit() or len(value) > 18:
                raise tar.bad(at, f"a member of size {safe_keys.shown(value)}")
            says.size = int(value)
        elif keyword == KEY:
            says.key = value
        elif keyword.startswith(b"GNU.sparse."):
            raise tar.bad(
                at, "a sparse file, which does not lie in one piece: pack without --sparse"
            )
    return says


def _records(tar: Tar, at: int, body: bytes) -> Iterator[tuple[bytes, bytes]]:
    r"""The records `27 keyword=value\n` of a PAX header."""
    start = 0
    while start < len(body) and body[start]:
        space = body.find(b" ", start, start + 8)
        digits = body[start:space] if space > 0 else b""
        stop = start + int(digits) if digits.isdigit() else 0
        keyword, equals, value = body[space + 1 : stop - 1].partition(b"=")
        if not (space + 1 < stop <= len(body) and equals and body[stop - 1] == 10):
            raise tar.bad(at, "a damaged PAX header")
        yield keyword, value
        start = stop


def _link(
    tar: Tar,
    at: int,
    kind: bytes,
    name: bytes,
    target: bytes,
    length: int,
    found: Members,
    rows: dict[bytes, int],
) -> None:
    """A hard link is its target's bytes under another name; a symbolic one is passed over."""
    safe_keys.check(name, tar.where)
    shown, to = safe_keys.shown(name), safe_keys.shown(target)
    if kind == b"2":
        steps = [*name.split(b"/")[:-1], *target.split(b"/")]
        depth = 0
        for step in steps:
            depth += -1 if step == b".." else step not in (b"", b".")
            if depth < 0 or target.startswith(b"/"):
                raise tar.bad(
                    at,
                    f"{shown} is a link out of the tar, to {to}",
                )
        found.passed["symbolic links"] += 1
        return
    of = rows.get(plain(target))
    if of is None:
        safe_keys.check(plain(target), tar.where)
        raise tar.bad(
            at,
            f"{shown} is a link to {to}, which does not come before",
        )
    if length not in (0, found.lengths[of]):
        raise tar.bad(at, f"{shown} is a link with {length} bytes of its own")
    found.passed["hard links"] += 1
    if hidden(name) or name == plain(target):
        return
    rows[name] = len(found.names)
    found.names.append(name)
    found.offsets.append(found.offsets[of])
    found.lengths.append(found.lengths[of])
