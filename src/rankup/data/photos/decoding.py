"""From the bytes of a photo to its pixels."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from .. import images
from ..errors import BadContainer

try:
    import simplejpeg
except ImportError:
    raise UserError("photos are decoded by simplejpeg: pip install 'rankup[train]'") from None

if TYPE_CHECKING:
    from PIL.Image import Image

Bytes = bytes | memoryview
Pixels = npt.NDArray[np.uint8]

# 256 MiB as RGB. From here on Pillow warns, and warnings cannot be caught in threads.
MAX_PIXELS = 2**28 // 3
# The decoder reaches these at once. Other fractions, 3/8 or 3/4, take longer than the whole photo.
_SCALES = (8, 4, 2)


class Size(NamedTuple):
    """The size of a photo, from its header.

    Attributes:
        height, width: in pixels, as stored; EXIF's orientation is not looked at.
        jpeg: simplejpeg decodes it; the rest is for Pillow.
    """

    height: int
    width: int
    jpeg: bool


def decode(data: Bytes, *, at_least: tuple[int, int] | None = None) -> Pixels:
    """The pixels of a photo, for transforms of your own.

    JPEG is read by simplejpeg, with CMYK made RGB; damage that other programs pass over is an
    error. PNG, GIF, WebP, TIFF and BMP, of which the first picture counts, are read by Pillow.
    Grey becomes three equal channels, of 16 bits the upper 8 stay, transparency is left out, colour
    profiles are not applied. A photo is not turned as EXIF says, as in torchvision and in most
    training code; `rankup pack --resize` turns it.

    Args:
        at_least: (height, width) that are enough. A JPEG that is twice, 4 or 8 times as large is
            decoded at 1/2, 1/4 or 1/8 of its size, which is faster.

    Returns:
        uint8 (height, width, 3), an array of its own, in memory like the rows of the photo.

    Raises:
        BadContainer: it is no photo, is damaged, or has more than `MAX_PIXELS`.
    """
    size = measure(data)
    factor = 1 if at_least is None else factor_for(size.height, size.width, *at_least)
    return pixels(data, size, factor)


def measure(data: Bytes) -> Size:
    """Height and width of a photo from its header, before any memory is taken for its pixels.

    Raises:
        BadContainer: it is no photo, its header is damaged, or it has more than `MAX_PIXELS`.
    """
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        return _allowed(int(height), int(width), True)
    except (ValueError, KeyError, RuntimeError):
        seen = images.look(data, data[-images.TAIL :], len(data), "")
    if not seen.kind:
        what = f"it begins with {bytes(data[:8])!r}" if len(data) else "it is empty"
        raise BadContainer(f"this is no JPEG, PNG, GIF, WebP, TIFF or BMP: {what}")
    if not seen.width or not seen.height:
        raise BadContainer(f"the header of this {seen.kind} is damaged")
    if seen.kind == "JPEG":
        # Pillow reads them, and passes over damage: also where that is what makes them unusual.
        raise BadContainer(
            "the colours of this JPEG are sampled in a way that simplejpeg does not read: save it "
            "anew, or decode it with Pillow in a transform of your own"
        )
    return _allowed(seen.height, seen.width, False)


def factor_for(height: int, width: int, enough_height: int, enough_width: int) -> int:
    """The largest of 8, 4, 2 and 1 that a part can be divided by and still be large enough."""
    for factor in _SCALES:
        if height // factor >= enough_height and width // factor >= enough_width:
            return factor
    return 1


def pixels(data: Bytes, size: Size, factor: int = 1) -> Pixels:
    """Decode a photo that has been measured.

    Args:
        factor: 1, 2, 4 or 8, that a JPEG's height and width are divided by (rounded up); others
            keep theirs.

    Returns:
        uint8 (height, width, 3), C-contiguous.

    Raises:
        BadContainer: it is damaged.
    """
    if not size.jpeg:
        return _by_pillow(data, size)
    height, width = -(-size.height // factor), -(-size.width // factor)
    try:
        if factor == 1:
            found = simplejpeg.decode_jpeg(data)
        else:
            found = simplejpeg.decode_jpeg(data, min_height=height, min_width=width, min_factor=2)
    except (ValueError, KeyError, RuntimeError) as error:
        raise BadContainer(f"the photo cannot be decoded: {error}") from None
    if found.shape != (height, width, 3):
        raise BadContainer(f"the photo was to be {height} x {width} pixels, and is {found.shape}")
    return found


def _allowed(height: int, width: int, jpeg: bool) -> Size:
    if height * width > MAX_PIXELS:
        raise BadContainer(
            f"this photo has {width} x {height} pixels, and at most {MAX_PIXELS:,} are decoded; "
            f"`rankup pack --resize` makes photos smaller"
        )
    return Size(height, width, jpeg)


def _by_pillow(data: Bytes, size: Size) -> Pixels:
    try:
        from PIL import Image
    except ImportError:
        raise UserError("this photo is decoded by Pillow: pip install 'rankup[train]'") from None
    kind = images.kind_of(data)
    try:
        # Pillow knows formats that start other programs; only the one that was seen is tried.
        with Image.open(io.BytesIO(data), formats=[kind.upper()]) as image:
            _allowed(image.height, image.width, False)
            found = _rgb(image)
    except BadContainer:
        raise
    except Image.UnidentifiedImageError:
        raise BadContainer(f"the header of this {kind} is damaged") from None
    except Exception as error:  # of damaged files Pillow raises nearly anything, MemoryError too
        reason = str(error) or type(error).__name__
        raise BadContainer(f"the photo, a {kind}, cannot be decoded: {reason}") from None
    if found.shape != (size.height, size.width, 3):
        raise BadContainer(
            f"the header of this {kind} says {size.height} x {size.width} pixels, and there are "
            f"{found.shape[0]} x {found.shape[1]}"
        )
    return found


def _rgb(image: Image) -> Pixels:
    if image.mode.startswith("I;16"):
        upper: Any = np.asarray(image) >> 8
        return np.repeat(upper.astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise ValueError("its values have 32 bits, and no range that is known")
    return np.array(image.convert("RGB"))  # a copy, that can be written to
