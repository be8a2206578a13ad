"""Smaller images for `rankup pack --resize`: decoded, shrunk and encoded again."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from ..base.errors import UserError
from . import images
from .errors import BadContainer

if TYPE_CHECKING:
    from PIL.Image import Image

QUALITY = 90
_ORIENTATION = 0x0112  # in EXIF: how the camera was held
# As what an image is shrunk and saved: colours are mixed, which numbers of a palette cannot be.
_MODES = {"1": "L", "P": "RGB", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB"}


def resized(data: bytes | memoryview, shorter_side: int, quality: int = QUALITY) -> bytes:
    """An image whose shorter side has at most so many pixels, in the format it had.

    What is small enough, and what is no image at all, comes back unchanged. The rest is decoded,
    shrunk with an antialiasing filter (Lanczos), turned as EXIF says and encoded; CMYK becomes RGB,
    colour profiles stay, other metadata goes. The same libraries make the same bytes.

    Args:
        quality: of JPEG and WebP.

    Raises:
        BadContainer: it cannot be decoded, or is a series of images.
        UserError: Pillow is not installed.
    """
    seen = images.look(data, data[-images.TAIL :], len(data), "")
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
                return _smaller(image, data, shorter_side, seen.kind, quality)
        except (*damaged, MemoryError, IndexError, TypeError, AttributeError) as error:
            # Pillow raises any of these on damaged files.
            reason = str(error) or type(error).__name__
            raise BadContainer(f"the image cannot be made smaller: {reason}") from None


def _smaller(
    image: Image, data: bytes | memoryview, shorter_side: int, kind: str, quality: int
) -> bytes:
    from PIL.Image import Resampling

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
    smaller = _turned(smaller, orientation)
    smaller.info = {}  # else what belongs to the palette, or EXIF, is written once more
    if kind in ("JPEG", "WebP"):
        options["quality"] = quality
    out = io.BytesIO()
    smaller.save(out, kind.upper(), **{name: one for name, one in options.items() if one})
    return out.getvalue()


def _turned(image: Image, orientation: int) -> Image:
    from PIL.Image import Transpose

    ways = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(ways[orientation]) if orientation in ways else image
