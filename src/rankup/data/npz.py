"""Arrays in one uncompressed .npz, mapped into memory instead of read.

A .npz is a zip of .npy files. Stored without compression and aligned, each array can be mapped
where it lies; `numpy.load` reads the same file. The zip's comment is a hash of all before it, so
that no byte can change unseen; the zip's CRC of each member tells which array it is.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from ..base.files import replacing
from . import npy_header
from .errors import BadContainer

_ALIGN = 64
_LOCAL = struct.Struct("<4s5H3I2H")  # a zip's local header: sizes of name and extra field come last
# What zipfile, and numpy with the text that is an array's header, raise for bytes by chance.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
    *(ValueError, ArithmeticError, EOFError, RuntimeError, SyntaxError, MemoryError),
    *(TypeError, LookupError),
)
_COMMENT = b"xxh3 of all before: "
_DIGEST = 16  # hexadecimal digits behind it, the last bytes of the file
_CHUNK = 1 << 20
_EXTRA_ID = 0x7275  # of the padding; readers pass over an extra field they do not know


def save(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Replace `path` by these arrays, old or new. The same arrays give the same bytes.

    Raises:
        OSError: it could not be written; `path` is unchanged.
    """
    with replacing(path) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            archive.comment = _COMMENT + bytes(_DIGEST)
            for name, array in arrays.items():
                _member(archive, file, name, np.ascontiguousarray(array))
        digest = _digest(file)
        file.seek(-_DIGEST, os.SEEK_END)
        file.write(digest)


def _digest(file: BinaryIO) -> bytes:
    """Return the xxh3 of all but the last bytes, which are for it."""
    state = xxhash.xxh3_64()
    rest = file.seek(0, os.SEEK_END) - _DIGEST
    file.seek(0)
    buffer = memoryview(bytearray(_CHUNK))  # it stays in the processor's cache
    while rest > 0 and (count := file.readinto(buffer[: min(rest, _CHUNK)])):  # type: ignore[attr-defined]
        state.update(buffer[:count])
        rest -= count
    return state.hexdigest().encode()


def _member(archive: zipfile.ZipFile, file: BinaryIO, name: str, array: npt.NDArray[Any]) -> None:
    info = zipfile.ZipInfo(f"{name}.npy")  # its date is the beginning of 1980
    info.external_attr = 0o644 << 16
    # The zip64 field (20 bytes), which is always written, comes before what is padded here.
    at = file.tell() + _LOCAL.size + len(info.filename) + 20 + 4
    info.extra = struct.pack("<HH", _EXTRA_ID, -at % _ALIGN) + bytes(-at % _ALIGN)
    with archive.open(info, "w", force_zip64=True) as member:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, np.lib.format.header_data_from_array_1_0(array)
        )
        member.write(header.getvalue())
        # Not by array.tofile: the zip counts its CRC on the way.
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), 1 << 24):
            member.write(flat[start : start + (1 << 24)].data)


def load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays by name, mapped and read-only, of a file that is as it was saved.

    All of the file is read once, for its hash.

    Raises:
        BadContainer: not a .npz of ours, or damaged; says which array has changed.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        try:
            # One map for all; the arrays keep it alive.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if mapped[-len(_COMMENT) - _DIGEST : -_DIGEST] != _COMMENT:
                raise ValueError("it does not end as it should")
            sound = mapped[-_DIGEST:] == _digest(file)
            with zipfile.ZipFile(file) as archive:
                if not sound:
                    raise BadContainer(
                        f"{path} is damaged: {_changed(archive)}; restore it, or make it anew"
                    )
                return {
                    info.filename.removesuffix(".npy"): _mapped(mapped, info)
                    for info in archive.infolist()
                }
        except _DAMAGE as error:
            raise BadContainer(f"{path} is no .npz of ours, or a damaged one: {error}") from None


def _changed(archive: zipfile.ZipFile) -> str:
    """Return what is not as it was saved, by the CRC of each array."""
    names = [
        repr(info.filename.removesuffix(".npy"))
        for info in archive.infolist()
        if not _sound(archive, info)
    ]
    if not names:
        return "bytes around its arrays have changed"
    what, have = ("arrays", "have") if len(names) > 1 else ("array", "has")
    return f"its {what} {', '.join(names)} {have} changed"


def _sound(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(info) as member:
            while member.read(1 << 24):
                pass
    except (*_DAMAGE, OSError):
        return False
    return True


def _mapped(mapped: mmap.mmap, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{info.filename} is compressed")
    if info.flag_bits & 0x1:
        raise ValueError(f"{info.filename} is encrypted")
    *_, name, extra = _LOCAL.unpack_from(mapped, info.header_offset)
    start = info.header_offset + _LOCAL.size + name + extra
    stop = start + info.file_size
    if stop > len(mapped):
        raise ValueError(f"{info.filename} ends past the end of the file")
    head = io.BytesIO(mapped[start : min(stop, start + 4096)])
    version, shape, fortran, dtype = npy_header.read(head)
    if version != (1, 0):
        raise ValueError(f"{info.filename} is an .npy of another version")
    if dtype.hasobject or fortran:
        raise ValueError(f"{info.filename} holds {dtype}, which cannot be mapped")
    count = 1
    for size in shape:
        count *= size
    start += head.tell()
    if count < 0 or start + count * dtype.itemsize != stop:
        raise ValueError(f"{info.filename} is not as long as it says")
    return np.frombuffer(mapped, dtype, count, start).reshape(shape)
