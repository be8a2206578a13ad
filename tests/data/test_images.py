"""Images from their first and last bytes, as Pillow sees them."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rankup.data import images
from rankup.data.images import Look


def look(data: bytes, name: str) -> Look:
    return images.look(data[: images.HEAD], data[-images.TAIL :], len(data), name)


def made(kind: str, mode: str = "RGB", size: tuple[int, int] = (70, 50), **options: Any) -> bytes:
    values = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), np.uint8)
    out = io.BytesIO()
    image = Image.fromarray(values).convert(mode)
    if mode.endswith("A"):  # else it is not worth writing
        image.putalpha(100)
    image.save(out, kind, **options)
    return out.getvalue()


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
    data = made(kind, mode)
    assert look(data, name)[1:] == (70, 50, ())
    assert look(data, name).kind.upper() == kind
    # The end of a file that was cut off, and of one that was cut in the middle.
    for part in (data[:-2], data[: len(data) // 2], data[:20]):
        assert look(part, name).problems == ("truncated",)


def test_cmyk() -> None:
    assert look(made("JPEG", "CMYK"), "x.jpg").problems == ("cmyk",)
    assert look(made("TIFF", "CMYK"), "x.tif").problems == ("cmyk",)


def test_progressive() -> None:
    data = made("JPEG", progressive=True)
    assert look(data, "x.jpg").problems == ("progressive",)
    assert look(data[:-100], "x.jpg").problems == ("truncated", "progressive")


def test_names_that_say_something_else() -> None:
    # n02105855_2933.JPEG of ImageNet is a PNG.
    assert look(made("PNG"), "n02105855_2933.JPEG").problems == ("not what its name says",)
    assert look(made("PNG"), "n02105855_2933.JPEG").kind == "PNG"
    assert look(made("JPEG"), "without_an_ending").problems == ()
    assert look(b"BMW drives", "x.txt") == Look("")
    assert look(b"", "x.txt") == Look("")
    assert look(b"", "x.png").problems == ("empty",)
    assert look(b"<html>404 Not Found</html>", "x.jpg").problems == ("no image",)


def test_real_photos_as_pillow_sees_them(data_root: Path | None, tmp_path: Path) -> None:
    if data_root is None:
        (tmp_path / "x.jpg").write_bytes(made("JPEG"))
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
    *(made(kind)[:60] for kind in ("JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP")),
    b"\xff\xd8" + b"\xff\xe0\xff\xff" * 4,
    b"II*\0" + struct.pack("<IH", 8, 3) + struct.pack("<HHII", 256, 4, 1, 9) * 3,
]
