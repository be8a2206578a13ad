"""Images from their first and last bytes, as Pillow sees them; and made smaller."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from rankup.base.errors import UserError
from rankup.data import images
from rankup.data.errors import BadContainer
from rankup.data.images import Look, resized

from .photos.pictures import stripes


def look(data: bytes, name: str) -> Look:
    return images.look(data[: images.HEAD], data[-images.TAIL :], len(data), name)


@pytest.mark.parametrize(
    ("kind", "mode", "name"),
    [
        ("JPEG", "RGB", "x.JPEG"),
        ("JPEG", "L", "x.jpg"),
        ("PNG", "RGBA", "x.png"),
        ("PNG", "P", "x.PNG"),
        ("GIF", "P", "x.gif"),
        ("WEBP", "RGB", "x.webp"),
        ("WEBP", "RGBA", "x.webp"),
        ("TIFF", "RGB", "x.tif"),
        ("BMP", "RGB", "x.bmp"),
    ],
)
def test_sound_images(kind: str, mode: str, name: str) -> None:
    data = stripes(kind, mode, (70, 50))
    assert look(data, name)[1:] == (70, 50, ())
    assert look(data, name).kind.upper() == kind
    # The end of a file that was cut off, and of one that was cut in the middle.
    for part in (data[:-2], data[: len(data) // 2], data[:20]):
        assert look(part, name).problems == ("truncated",)


def test_cmyk() -> None:
    assert look(stripes("JPEG", "CMYK"), "x.jpg").problems == ("cmyk",)
    assert look(stripes("TIFF", "CMYK"), "x.tif").problems == ("cmyk",)


def test_progressive() -> None:
    data = stripes("JPEG", progressive=True)
    assert look(data, "x.jpg").problems == ("progressive",)
    assert look(data[:-100], "x.jpg").problems == ("truncated", "progressive")


def test_names_that_say_something_else() -> None:
    # n02105855_2933.JPEG of ImageNet is a PNG.
    assert look(stripes("PNG"), "n02105855_2933.JPEG").problems == ("not what its name says",)
    assert look(stripes("PNG"), "n02105855_2933.JPEG").kind == "PNG"
    assert look(stripes("JPEG"), "without_an_ending").problems == ()
    assert look(b"BMW drives", "x.txt") == Look("")
    assert look(b"", "x.txt") == Look("")
    assert look(b"", "x.png").problems == ("empty",)
    assert look(b"<html>404 Not Found</html>", "x.jpg").problems == ("no image",)


def test_real_photos_as_pillow_sees_them(data_root: Path | None, tmp_path: Path) -> None:
    if data_root is None:
        (tmp_path / "x.jpg").write_bytes(stripes("JPEG"))
    for path in sorted((data_root or tmp_path).rglob("*.[jJ][pP]*[gG]"))[::4]:
        data = path.read_bytes()
        seen = look(data, path.name)
        with Image.open(path) as image:
            size = image.size
            progressive = bool(image.info.get("progressive"))
        assert (seen.width, seen.height) == size, path
        assert ("progressive" in seen.problems) == progressive, path
        assert not images.DAMAGED & set(seen.problems), path
        assert "truncated" in look(data[: len(data) * 2 // 3], path.name).problems, path


@given(st.data())
def test_any_bytes_give_an_answer(data: st.DataObject) -> None:
    start = data.draw(st.sampled_from(_STARTS))
    head = start[: data.draw(st.integers(0, len(start)))] + data.draw(st.binary(max_size=80))
    size = data.draw(st.sampled_from([len(head), len(head) + 1000]))
    seen = images.look(head, head[-64:], size, "x.png")
    assert min(seen.width, seen.height) >= 0


_STARTS = [
    *(stripes(kind)[:60] for kind in ("JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP")),
    b"\xff\xd8" + b"\xff\xe0\xff\xff" * 4,
    b"II*\0" + struct.pack("<IH", 8, 3) + struct.pack("<HHII", 256, 4, 1, 9) * 3,
]


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
    data = stripes(kind)
    small = opened(resized(data, 100))
    assert (small.format, small.size) == (kind, (150, 100))
    assert far(small, opened(data).convert("RGB").resize((150, 100), Image.Resampling.LANCZOS)) < 8
    assert resized(data, 100) == resized(memoryview(data), 100)
    assert opened(resized(stripes(kind, size=(401, 999)), 100)).size == (100, 249)


@pytest.mark.parametrize(
    ("mode", "after"), [("1", "L"), ("L", "L"), ("LA", "LA"), ("P", "RGB"), ("RGBA", "RGBA")]
)
def test_pngs_of_all_colours(mode: str, after: str) -> None:
    small = opened(resized(stripes("PNG", mode), 100))
    assert (small.mode, small.size) == (after, (150, 100))


def test_16_bits_stay() -> None:
    values = np.linspace(0, 65535, 300 * 200).reshape(200, 300).astype(np.uint16)
    out = io.BytesIO()
    Image.fromarray(values).save(out, "PNG")
    small = opened(resized(out.getvalue(), 100))
    assert small.size == (150, 100)
    assert np.asarray(small).max() > 60_000


def test_what_is_small_enough_stays_as_it_is() -> None:
    data = stripes(size=(150, 100), exif=_held(6))
    assert resized(data, 100) == data
    assert resized(data, 5000) == data
    assert opened(resized(data, 99)).size == (99, 148)  # turned, see below
    assert resized(b"a caption, no image", 100) == b"a caption, no image"
    assert resized(b"", 100) == b""


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_stands_upright(orientation: int) -> None:
    data = stripes(exif=_held(orientation))
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
    data = stripes()
    for damaged in (data[: len(data) // 2], data[:300], stripes("PNG")[:-200]):
        with pytest.raises(BadContainer, match="cannot be made smaller"):
            resized(damaged, 100)
    several = io.BytesIO()
    frames = [opened(stripes("PNG", size=(300, 200))) for _ in range(3)]
    frames[1].paste(0, (0, 0, 50, 50))
    frames[0].save(several, "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(BadContainer, match="series of images"):
        resized(several.getvalue(), 100)


def test_an_image_of_absurd_size_is_not_decoded() -> None:
    data = bytearray(stripes("PNG"))
    data[16:24] = b"\x7f\xff\xff\xff" * 2
    with pytest.raises(BadContainer, match="cannot be made smaller"):
        resized(bytes(data), 100)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    data = stripes()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"pip install 'rankup\[train\]'"):
        resized(data, 100)
