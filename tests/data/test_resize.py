"""Images made smaller on the way into a container."""

from __future__ import annotations

import builtins
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from rankup.base.errors import UserError
from rankup.data.errors import BadContainer
from rankup.data.images import resized


def photo(
    kind: str = "JPEG", mode: str = "RGB", size: tuple[int, int] = (600, 400), **options: Any
) -> bytes:
    """Soft stripes: another one in each direction, so that turning it shows."""
    x, y = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    values = np.stack([255 * x, 255 * y, 127 + 127 * np.sin(9 * x + 4 * y)], -1)
    out = io.BytesIO()
    image = Image.fromarray(values.astype(np.uint8)).convert(mode)
    if mode.endswith("A"):
        image.putalpha(100)
    image.save(out, kind, **options)
    return out.getvalue()


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def far(one: Image.Image, other: Image.Image) -> float:
    """Mean difference of their values."""
    return float(
        np.abs(
            np.asarray(one.convert("RGB"), float) - np.asarray(other.convert("RGB"), float)
        ).mean()
    )


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"])
def test_the_shorter_side_is_as_asked_and_the_format_stays(kind: str) -> None:
    data = photo(kind)
    small = opened(resized(data, 100))
    assert (small.format, small.size) == (kind, (150, 100))
    assert far(small, opened(data).convert("RGB").resize((150, 100), Image.Resampling.LANCZOS)) < 8
    assert resized(data, 100) == resized(memoryview(data), 100)
    assert opened(resized(photo(kind, size=(401, 999)), 100)).size == (100, 249)


@pytest.mark.parametrize(
    ("mode", "after"), [("1", "L"), ("L", "L"), ("LA", "LA"), ("P", "RGB"), ("RGBA", "RGBA")]
)
def test_pngs_of_all_colours(mode: str, after: str) -> None:
    small = opened(resized(photo("PNG", mode), 100))
    assert (small.mode, small.size) == (after, (150, 100))


def test_16_bits_stay() -> None:
    values = np.linspace(0, 65535, 300 * 200).reshape(200, 300).astype(np.uint16)
    out = io.BytesIO()
    Image.fromarray(values).save(out, "PNG")
    small = opened(resized(out.getvalue(), 100))
    assert small.size == (150, 100)
    assert np.asarray(small).max() > 60_000


def test_what_is_small_enough_stays_as_it_is() -> None:
    data = photo(size=(150, 100), exif=_held(6))
    assert resized(data, 100) == data
    assert resized(data, 5000) == data
    assert opened(resized(data, 99)).size == (99, 148)  # turned, see below
    assert resized(b"a caption, no image", 100) == b"a caption, no image"
    assert resized(b"", 100) == b""


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_stands_upright(orientation: int) -> None:
    data = photo(exif=_held(orientation))
    small = opened(resized(data, 100))
    upright = ImageOps.exif_transpose(opened(data))
    assert upright is not None
    assert far(small, upright.resize(small.size)) < 3
    assert not small.getexif()


def _held(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def test_what_cannot_be_decoded_is_named() -> None:
    data = photo()
    for damaged in (data[: len(data) // 2], data[:300], photo("PNG")[:-200]):
        with pytest.raises(BadContainer, match="cannot be made smaller"):
            resized(damaged, 100)
    several = io.BytesIO()
    frames = [opened(photo("PNG", size=(300, 200))) for _ in range(3)]
    frames[1].paste(0, (0, 0, 50, 50))
    frames[0].save(several, "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(BadContainer, match="series of images"):
        resized(several.getvalue(), 100)


def test_an_image_of_absurd_size_is_not_decoded() -> None:
    data = bytearray(photo("PNG"))
    data[16:24] = b"\x7f\xff\xff\xff" * 2
    with pytest.raises(BadContainer, match="cannot be made smaller"):
        resized(bytes(data), 100)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'rankup\[train\]'"):
        resized(_PHOTO, 100)


_PHOTO = photo()
