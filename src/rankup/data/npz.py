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
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from ..base.files import replacing
from .errors import DAMAGE, BadContainer

_ALIGN = 64
LOCAL = struct.Struct("<4s5H3I2H")  # a zip's local header: sizes of name and extra field come last
_COMMENT = b"xxh3 of all before: "
_DIGEST = 16  # hexadecimal digits behind it, the last bytes of the file
_CHUNK = 1 << 20
_AGAIN = 8  # times that a header is read
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
    at = file.tell() + LOCAL.size + len(info.filename) + 20 + 4
    info.extra = struct.pack("<HH", _EXTRA_ID, -at % _ALIGN) + bytes(-at % _ALIGN)
    with archive.open(info, "w", force_zip64=True) as member:
        member.write(array_header(array.dtype, array.shape))
        # Not by array.tofile: the zip counts its CRC on the way.
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), 1 << 24):
            member.write(flat[start : start + (1 << 24)].data)


def array_header(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """Return what stands in front of the values of an array in an .npy."""
    head = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))  # type: ignore[no-untyped-call]
    np.lib.format.write_array_header_1_0(
        head, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return head.getvalue()


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
        except DAMAGE as error:
            raise BadContainer(f"{path} is no .npz of ours, or a damaged one: {error}") from None


def _changed(archive: zipfile.ZipFile) -> str:
    """Return the first that is not as it was saved, by the CRC of each array."""
    name: str | None = ""
    with suppress(*DAMAGE, OSError):
        name = archive.testzip()
    if not name:
        return "bytes around its arrays have changed"
    return f"its array {name.removesuffix('.npy')!r} has changed"


def _mapped(mapped: mmap.mmap, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{info.filename} is compressed")
    start = begin(mapped, info, len(mapped))
    stop = start + info.file_size
    head = io.BytesIO(mapped[start : min(stop, start + 4096)])
    version, shape, fortran, dtype = header(head)
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


class Local(NamedTuple):
    """The local header of a zip's member; `start` is where its data begins."""

    flags: int
    method: int
    crc: int
    names: int  # bytes of the name
    start: int


def local(header: bytes | memoryview, at: int) -> Local | None:
    """Return what the 30 bytes at a place of a zip say; None where they are no header."""
    if len(header) < LOCAL.size or header[:4] != b"PK\x03\x04":
        return None
    _, _, flags, method, _, _, crc, _, _, names, extra = LOCAL.unpack_from(header)
    return Local(flags, method, crc, names, at + LOCAL.size + names + extra)


def begin(file: IO[bytes] | mmap.mmap, info: zipfile.ZipInfo, size: int) -> int:
    """Return where the bytes of a stored member of a zip begin.

    Args:
        size: of the zip, in bytes.

    Raises:
        ValueError: they are not where the zip says.
    """
    if info.flag_bits & 0x1 or info.header_offset < 0:
        raise ValueError(f"{info.filename} is encrypted, or nowhere")
    file.seek(info.header_offset)
    about = local(file.read(LOCAL.size), info.header_offset)
    if about is None or about.start + info.file_size > size:
        raise ValueError(f"{info.filename} is not where it should be")
    return about.start


def header(file: IO[bytes]) -> tuple[tuple[int, int], tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy: version, shape, True for Fortran's order, and dtype.

    `file` then stands behind it.

    numpy reads a header with `ast.literal_eval`. Up to Python 3.12 its parser keeps one count of
    its depth for all threads of a process, and raises a SystemError in one while another parses
    (github.com/python/cpython, issue 106905). That says nothing of the file, so it is read again.

    Args:
        file: at the start of the .npy; can seek.

    Raises:
        ValueError: no header of version 1.0 or 2.0; and what numpy raises for bytes by chance.
    """
    start = file.tell()
    for _ in range(_AGAIN):
        with suppress(SystemError):
            return _header(file)
        file.seek(start)
    return _header(file)


def _header(file: IO[bytes]) -> tuple[tuple[int, int], tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an .npy of version {'.'.join(map(str, version))}")
    read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    return version, *read(file)
