"""Kind, size and problems of an image, from the first and last bytes of its file; and smaller ones.

Looked at by hand, in some microseconds, since every image of a pack is. Made smaller by Pillow.
"""

from __future__ import annotations

import io
import struct
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.errors import UserError
from .errors import BadContainer

if TYPE_CHECKING:
    from PIL.Image import Image

# A tenth of ImageNet's photos have their size behind 4 KiB of thumbnail or profile, few behind 64.
HEAD, TAIL = 1 << 16, 64
# Problems that a decoder cannot help; the others only surprise.
DAMAGED = frozenset({"truncated", "no image", "empty"})
# Names' endings -> kinds.
SUFFIXES = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), "JPEG"),
    **{"png": "PNG", "gif": "GIF", "webp": "WebP", "bmp": "BMP"},
    **dict.fromkeys(("tif", "tiff"), "TIFF"),
}
_AUDIO = {b"fLaC": ".flac", b"OggS": ".ogg"}
_PNG = b"\x89PNG"
_PNG_END = b"IEND\xaeB`\x82"

_WIDTH, _HEIGHT, _PHOTOMETRIC, _STRIPS, _COUNTS = 256, 257, 262, 273, 279
_INKS = 5  # TIFF's number of CMYK
_CUT: tuple[str, ...] = ("truncated",)

_QUALITY = 90  # of JPEG and WebP
_ORIENTATION = 0x0112  # in EXIF: how the camera was held
# As what an image is shrunk and saved: colours are mixed, which numbers of a palette cannot be.
_MODES = {"1": "L", "P": "RGB", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB"}

_Bytes = bytes | memoryview


class Look(NamedTuple):
    """Kind, size and problems of an image.

    Attributes:
        kind: `JPEG`, `PNG`, `GIF`, `WebP`, `TIFF`, `BMP`; empty: none of these.
        width, height: 0 where the head is too short to tell.
        problems: of `truncated`, `cmyk`, `progressive`, `not what its name says`, `no image`,
            `empty`; the last two only where the name is that of an image.
    """

    kind: str
    width: int = 0
    height: int = 0
    problems: tuple[str, ...] = ()


def look(head: bytes | memoryview, tail: bytes | memoryview, size: int, name: str) -> Look:
    """Kind, size and problems of an image.

    Args:
        head: the first bytes, `HEAD` of them or all there are; a view is not copied.
        tail: the last ones, `TAIL` of them or all there are.
        size: bytes of the whole file.
        name: of which the ending tells what it should be.
    """
    said = SUFFIXES.get(name[name.rfind(".") + 1 :].lower(), "")
    kind = kind_of(head)
    if not kind:
        problem = ("empty" if size == 0 else "no image",) if said else ()
        return Look("", problems=problem)
    seen = _LOOKS[kind](head, bytes(tail), size)
    if said and said != kind:
        return seen._replace(problems=(*seen.problems, "not what its name says"))
    return seen


def kind_of(head: bytes | memoryview) -> str:
    """The kind of an image by its first 18 bytes; empty where it is none that is known."""
    head = bytes(head[:18])
    if head[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if head[:4] == _PNG:
        return "PNG"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[:4] in (b"II*\0", b"MM\0*"):
        return "TIFF"
    # Two letters begin many a text: the header's size, too, must be one that exists.
    if head[:2] == b"BM" and head[14:18] in _BMP_HEADERS:
        return "BMP"
    return ""


def suffix_of(head: bytes | memoryview) -> str:
    """Return the suffix of files that begin so, as `.jpg`; empty where that is not known."""
    kind = kind_of(head)
    ends = (f".{end}" for end, of in SUFFIXES.items() if of == kind)
    return next(ends, "") or _AUDIO.get(bytes(head[:4]), "")


def resized(data: bytes | memoryview, shorter_side: int) -> bytes:
    """An image whose shorter side has at most so many pixels, in the format it had.

    What is small enough, and what is no image at all, comes back unchanged. The rest is decoded,
    shrunk with an antialiasing filter (Lanczos), turned as EXIF says and encoded; CMYK becomes RGB,
    colour profiles stay, other metadata goes. The same libraries make the same bytes.

    Raises:
        BadContainer: it cannot be decoded, or is a series of images.
        UserError: Pillow is not installed.
    """
    seen = look(data, data[-TAIL:], len(data), "")
    if not seen.kind or 0 < min(seen.width, seen.height) <= shorter_side:
        return bytes(data)
    try:
        from PIL import Image
    except ImportError:
        raise UserError("--resize needs Pillow: pip install 'rankup[train]'") from None
    damaged = (Image.DecompressionBombError, OSError, ValueError, SyntaxError, EOFError)
    with warnings.catch_warnings():
        # Pillow warns of large images, and raises where they are twice as large.
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data)) as image:
                return _smaller(image, data, shorter_side, seen.kind)
        except (*damaged, MemoryError, IndexError, TypeError, AttributeError) as error:
            # Pillow raises any of these on damaged files.
            reason = str(error) or type(error).__name__
            raise BadContainer(f"the image cannot be made smaller: {reason}") from None


def _smaller(image: Image, data: bytes | memoryview, shorter_side: int, kind: str) -> bytes:
    from PIL.Image import Resampling
    from PIL.ImageOps import exif_transpose

    width, height = image.size
    if min(width, height) <= shorter_side:
        return bytes(data)
    # A camera's JPEG may carry previews behind its picture; elsewhere it is an animation.
    if kind != "JPEG" and getattr(image, "n_frames", 1) > 1:
        raise ValueError("it is a series of images")
    scale = shorter_side / min(width, height)
    size = round(width * scale), round(height * scale)
    options: dict[str, Any] = {"icc_profile": image.info.get("icc_profile")}
    orientation = image.getexif().get(_ORIENTATION, 1)
    # The decoder of JPEG can leave out detail; twice the size is enough for the filter.
    image.draft(image.mode if image.mode in ("L", "RGB") else None, (2 * size[0], 2 * size[1]))
    image.load()
    mode = _MODES.get(image.mode, image.mode)
    if image.mode == "P" and "transparency" in image.info:
        mode = "RGBA"
    if image.mode == "CMYK":  # its profile is one of inks
        options = {}
    smaller = image.convert(mode) if mode != image.mode else image
    smaller = smaller.resize(size, Resampling.LANCZOS, reducing_gap=3)
    smaller.getexif()[_ORIENTATION] = orientation
    exif_transpose(smaller, in_place=True)
    smaller.info = {}  # else what belongs to the palette, or EXIF, is written once more
    if kind in ("JPEG", "WebP"):
        options["quality"] = _QUALITY
    out = io.BytesIO()
    smaller.save(out, kind.upper(), **{name: one for name, one in options.items() if one})
    return out.getvalue()


def _jpeg(head: _Bytes, tail: bytes, size: int) -> Look:
    # Inside its data FF is never followed by D9, so that D9 anywhere near the end is the end.
    whole = tail[-2:] == b"\xff\xd9" or b"\xff\xd9" in tail
    problems = () if whole else _CUT
    at, end = 2, len(head)
    while at + 4 <= end:
        if head[at] != 0xFF:
            return Look("JPEG", problems=_CUT)
        marker = head[at + 1]
        if marker == 0xFF:  # any number of them may stand before a marker
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if at + 10 > end:
                break
            height, width = head[at + 5] << 8 | head[at + 6], head[at + 7] << 8 | head[at + 8]
            if head[at + 9] == 4:  # channels
                problems = (*problems, "cmyk")
            if marker in (0xC2, 0xC6, 0xCA, 0xCE):
                problems = (*problems, "progressive")
            return Look("JPEG", width, height, problems)
        elif marker == 0xDA or marker == 0xD9:  # data without a frame
            return Look("JPEG", problems=_CUT)
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:
            at += 2
        else:
            at += 2 + (head[at + 2] << 8 | head[at + 3])
    if at + 10 > size:
        return Look("JPEG", problems=_CUT)
    return Look("JPEG", problems=problems)


def _png(head: _Bytes, tail: bytes, size: int) -> Look:
    if len(head) < 26 or head[12:16] != b"IHDR":
        return Look("PNG", problems=_CUT)
    width, height = struct.unpack_from(">II", head, 16)
    return Look("PNG", width, height, () if _PNG_END in tail else _CUT)


def _gif(head: _Bytes, tail: bytes, size: int) -> Look:
    if len(head) < 13:
        return Look("GIF", problems=_CUT)
    width, height = struct.unpack_from("<HH", head, 6)
    return Look("GIF", width, height, () if tail.rstrip(b"\0")[-1:] == b";" else _CUT)


def _webp(head: _Bytes, tail: bytes, size: int) -> Look:
    if len(head) < 30:
        return Look("WebP", problems=_CUT)
    (told,) = struct.unpack_from("<I", head, 4)
    if head[12:16] == b"VP8X":
        width = int.from_bytes(head[24:27], "little") + 1
        height = int.from_bytes(head[27:30], "little") + 1
    elif head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (one & 0x3FFF for one in struct.unpack_from("<HH", head, 26))
    return Look("WebP", width, height, () if told + 8 <= size else _CUT)


def _tiff(head: _Bytes, tail: bytes, size: int) -> Look:
    order = "<" if head[:1] == b"I" else ">"
    tags: dict[int, int] = {}
    try:
        (at,) = struct.unpack_from(f"{order}I", head, 4)
        (count,) = struct.unpack_from(f"{order}H", head, at)
        for row in range(at + 2, at + 2 + 12 * count, 12):
            tag, form, number = struct.unpack_from(f"{order}HHI", head, row)
            if number == 1 and form in (3, 4):  # a short stands at the front of the four bytes
                letter = "H" if form == 3 else "I"
                (tags[tag],) = struct.unpack_from(order + letter, head, row + 8)
    except struct.error:  # what is wanted may stand behind the head
        return Look("TIFF", problems=_CUT if len(head) >= size else ())
    problems = _CUT if tags.get(_STRIPS, 0) + tags.get(_COUNTS, 0) > size else ()
    if tags.get(_PHOTOMETRIC) == _INKS:
        problems = (*problems, "cmyk")
    return Look("TIFF", tags.get(_WIDTH, 0), tags.get(_HEIGHT, 0), problems)


def _bmp(head: _Bytes, tail: bytes, size: int) -> Look:
    if len(head) < 34:
        return Look("BMP", problems=_CUT)
    start, header = struct.unpack_from("<II", head, 10)
    width, height, _, bits = struct.unpack_from("<HHHH" if header == 12 else "<iiHH", head, 18)
    packed = 0 if header == 12 else head[30]
    # Rows of whole 4 bytes; of compressed ones the size cannot be foretold.
    data = (width * bits + 31) // 32 * 4 * abs(height) if packed in (0, 3) else 0
    return Look("BMP", max(width, 0), abs(height), _CUT if start + data > size else ())


_BMP_HEADERS = {struct.pack("<I", size) for size in (12, 40, 52, 56, 64, 108, 124)}
_LOOKS = {"JPEG": _jpeg, "PNG": _png, "GIF": _gif, "WebP": _webp, "TIFF": _tiff, "BMP": _bmp}
