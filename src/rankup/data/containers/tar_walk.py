"""From header to header through a tar, without reading what lies between them.

ustar, PAX, GNU and older tars. What a tar may hold beside files is passed over and counted
(folders, links, hidden files) or refused (devices, sparse files); of a member that is there twice
the last counts, as for tar itself.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from zlib import adler32

from .. import keys as safe_keys
from ..errors import BadContainer
from .member_names import hidden, plain
from .tar_headers import BLOCK, padded
from .tar_special import Members, Next, Tar, name_of, other

_TRAILER = 64 << 10
_LABEL = 64
_ZEROS = bytes(BLOCK)
_FILES = b"0\x007"


def walk(
    descriptor: int, size: int, where: str, wanted: bytes, with_hidden: bool = False
) -> Members:
    """All members of a tar.

    Args:
        size: of the file.
        where: its name, for messages.
        wanted: the end of names whose few bytes are wanted, as `.cls`.
        with_hidden: hidden files too, as where rankup has written them.

    Raises:
        BadContainer: it is damaged, cut short, or holds what is refused.
        OSError: it cannot be read.
    """
    tar = Tar(descriptor, size, where)
    found = Members()
    rows: dict[bytes, int] = {}
    names, offsets, lengths = found.names, found.offsets, found.lengths
    says: Next | None = None
    at = 0
    while True:
        block = tar.block(at)
        if block == _ZEROS:
            break
        if len(block) < BLOCK:
            raise _cut_short(tar)
        # The low half of Adler's sum is that of the bytes plus one, and a hundred times as quick.
        if (adler32(block) - 1 - _sum(block)) & 0xFFFF and not _matches(block):
            raise tar.bad(at, "a header does not match its sum: no tar, or a damaged one")
        kind = block[156:157]
        length = _number(tar, at, block)
        if says is not None and says.size is not None:
            length = says.size
        data = at + BLOCK
        if kind not in _FILES:
            behind, says = other(tar, at, kind, block, length, says, found, rows)
            at = data + behind
            continue
        name = name_of(block) if says is None or says.path is None else says.path
        end = data + length
        if end > size:
            raise tar.bad(
                at, f"{safe_keys.shown(name)} should end at byte {end} of {size}: cut short"
            )
        at = data + padded(length)
        if kind == b"\0" and name.endswith(b"/"):
            found.passed["folders"] += 1
            says = None
            continue
        if b"./" in name or b"//" in name:
            name = plain(name)
        if not safe_keys.safe(name):
            safe_keys.check(name, where)
        key = None if says is None else says.key
        says = None
        if key is None and not with_hidden and hidden(name):
            found.passed["hidden"] += 1
            continue
        row = len(names)
        rows[name] = row
        names.append(name)
        offsets.append(data)
        lengths.append(length)
        if key is not None:
            safe_keys.check(key, where)
            found.keys[row] = key
        if length <= _LABEL and name.endswith(wanted):
            start = data - tar.begin
            small = tar.window[start : start + length]
            if len(small) == length:
                found.small[row] = small
    if says is not None:
        raise tar.bad(at, "it ends behind an extension header: cut short, or damaged")
    _check_end(tar, at)
    return found if len(rows) == len(names) else _last(found, rows)


def _sum(block: bytes) -> int:
    """What the bytes of a header add up to, as it says itself; -1: it says nothing."""
    text = block[148:156]
    digits = text.strip(b"\0 ")
    try:
        # The field itself counts as eight spaces.
        return int(digits, 8) - 256 + sum(text) if digits.isdigit() else -1
    except ValueError:
        return -1


def _matches(block: bytes) -> bool:
    """Whether the sum is right after all: a large one, or of signed bytes as in some old tars."""
    stated, exact = _sum(block), sum(block)
    negative = sum(byte > 127 for byte in block[:148] + block[156:])
    return stated >= 0 and stated in (exact, exact - 256 * negative)


def _number(tar: Tar, at: int, block: bytes) -> int:
    text = block[124:136]
    if text[0] & 0x80:  # base 256, two's complement
        value = int.from_bytes(text, "big") & ((1 << 95) - 1)
        if text[0] & 0x40 or value >= 1 << 62:
            raise tar.bad(at, "a member of negative or absurd size")
        return value
    digits = text.partition(b"\0")[0].strip(b" ")
    try:
        if digits.isdigit():
            return int(digits, 8)
    except ValueError:
        pass
    if digits:
        raise tar.bad(at, f"a member of size {digits!r}")
    return 0


def _last(found: Members, rows: Mapping[bytes, int]) -> Members:
    """Of the members of one name the last."""
    kept = sorted(rows.values())
    new = {row: number for number, row in enumerate(kept)}
    return Members(
        [found.names[row] for row in kept],
        [found.offsets[row] for row in kept],
        [found.lengths[row] for row in kept],
        {new[row]: key for row, key in found.keys.items() if row in new},
        {new[row]: data for row, data in found.small.items() if row in new},
        found.passed + Counter({"written twice, the last counts": len(found.names) - len(kept)}),
    )


def _cut_short(tar: Tar) -> BadContainer:
    return BadContainer(
        f"{tar.where} ends at byte {tar.size} without the two blocks of zeros that end a tar: it "
        f"was cut short, or its writer did not finish; copy or make it again"
    )


def _check_end(tar: Tar, at: int) -> None:
    """A lone block of zeros may be a hole in the middle, behind which all would be lost."""
    if at + BLOCK > tar.size - BLOCK:
        raise _cut_short(tar)
    if any(os.pread(tar.descriptor, _TRAILER, at)):
        raise tar.bad(
            at,
            "something follows the block of zeros that ends a tar: tars put together with cat "
            "(tar --concatenate does it right), or a damaged one",
        )
