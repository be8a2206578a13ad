"""What is decoded, as Pillow sees it, and what is refused."""

from __future__ import annotations

import importlib
import io
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rankup.base.errors import UserError
from rankup.data import photos
from rankup.data.errors import BadContainer
from rankup.data.photos import decode
from rankup.data.photos.decoding import factor_for, measure

from .pictures import apart, by_pillow, real, stripes


def test_jpegs_as_pillow_decodes_them(data_root: Path | None) -> None:
    for data in real(data_root, 20):
        found = decode(data)
        assert found.dtype == np.uint8
        assert found.flags.c_contiguous
        assert found.flags.writeable
        assert apart(found, by_pillow(data)).max() <= 1  # another version of the same library
        assert np.array_equal(decode(memoryview(data)), found)


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"subsampling": 2}])
def test_kinds_of_jpeg(options: dict[str, Any]) -> None:
    data = stripes(**options)
    assert apart(decode(data), by_pillow(data)).max() <= 1


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_jpegs_in_other_colours(mode: str) -> None:
    data = stripes("JPEG", mode, quality=95)
    assert apart(decode(data), by_pillow(data)).max() <= 1
    assert measure(data).jpeg  # not by Pillow, which passes over damage


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *(("PNG", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA")),
        *(("WEBP", mode) for mode in ("RGB", "RGBA")),
        *(("TIFF", mode) for mode in ("L", "RGB", "CMYK")),
        *(("BMP", mode) for mode in ("1", "L", "RGB")),
        ("GIF", "P"),
    ],
)
def test_other_kinds(kind: str, mode: str) -> None:
    data = stripes(kind, mode, (60, 40))
    found = decode(data)
    assert found.shape == (40, 60, 3)
    assert np.array_equal(found, by_pillow(data))
    assert found.flags.c_contiguous
    assert found.flags.writeable


@pytest.mark.parametrize(("kind", "dtype"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2")])
def test_of_16_bits_the_upper_8_stay(kind: str, dtype: str) -> None:
    values = np.linspace(0, 65535, 30 * 20).reshape(20, 30).astype(dtype)
    out = io.BytesIO()
    Image.fromarray(values).save(out, kind)
    assert np.array_equal(decode(out.getvalue()), np.stack([values >> 8] * 3, -1))


def test_values_without_a_range_are_refused() -> None:
    out = io.BytesIO()
    Image.fromarray(np.ones((8, 8), np.float32)).save(out, "TIFF")
    with pytest.raises(BadContainer, match="no range"):
        decode(out.getvalue())


def test_the_first_picture_of_several() -> None:
    first, second = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    out = io.BytesIO()
    first.save(out, "TIFF", save_all=True, append_images=[second])
    assert tuple(decode(out.getvalue())[0, 0]) == (255, 0, 0)


def test_exif_does_not_turn_a_photo() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert np.array_equal(decode(stripes(exif=exif)), decode(stripes()))


@pytest.mark.slow
def test_a_large_jpeg_is_decoded_at_a_half_a_quarter_or_an_eighth(data_root: Path | None) -> None:
    assert [factor_for(800, 1000, side, 100) for side in (900, 401, 400, 200, 101, 100, 1)] == (
        [1, 1, 2, 4, 4, 8, 8]
    )
    for data in [*real(data_root, 5), stripes(size=(1601, 1203))]:
        whole = decode(data)
        height, width = whole.shape[:2]
        for factor in (2, 4, 8):
            small = decode(data, at_least=(height // factor, width // factor))
            assert small.shape == (-(-height // factor), -(-width // factor), 3)
            # Each of its pixels is about the mean of those that it stands for.
            rows, columns = height // factor, width // factor
            blocks = whole[: rows * factor, : columns * factor]
            means = blocks.reshape(rows, factor, columns, factor, 3).mean((1, 3))
            assert apart(small[:rows, :columns], means.round().astype(int)).mean() < 4
            assert np.array_equal(decode(data, at_least=(height // 2 + 1, 1)), whole)


def test_damage_that_others_pass_over_is_an_error(data_root: Path | None) -> None:
    (data,) = real(data_root, 1)
    inside = bytearray(data)
    middle = len(data) * 2 // 3
    inside[middle : middle + 40] = bytes(40)
    for damaged in (data[:-2], data[: len(data) // 2], bytes(inside)):
        with pytest.raises(BadContainer, match="cannot be decoded: "):
            decode(damaged)
    inks = stripes("JPEG", "CMYK")
    with pytest.raises(BadContainer, match="Premature end"):
        decode(inks[: len(inks) // 2])


def test_unusual_sampling_is_refused_for_pillow_passes_over_damage() -> None:
    data = bytearray(stripes(subsampling=0))
    frame = data.index(b"\xff\xc0")
    for factors in (0x13, 0x14):
        data[frame + 11] = factors  # of the first colour, so that the rest of the bits makes noise
        assert by_pillow(bytes(data)).shape == (400, 600, 3)
        with pytest.raises(BadContainer, match="sampled in a way"):
            decode(bytes(data))


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_files_that_are_cut_off(kind: str) -> None:
    data = stripes(kind, size=(90, 70))
    for part in (data[: len(data) // 2], data[:40], data[:12]):
        with pytest.raises(BadContainer):
            decode(part)


def test_a_png_with_a_wrong_bit_is_an_error() -> None:
    data = bytearray(stripes("PNG"))
    data[len(data) // 2] ^= 4
    with pytest.raises(BadContainer, match="PNG, cannot be decoded"):
        decode(bytes(data))


def test_what_is_no_photo() -> None:
    with pytest.raises(BadContainer, match=r"no JPEG, PNG.*it is empty"):
        decode(b"")
    with pytest.raises(BadContainer, match=r"it begins with b'<html>40'"):
        decode(b"<html>404 Not Found</html>")
    # PostScript, which Pillow would give to another program.
    with pytest.raises(BadContainer, match="no JPEG"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(BadContainer, match="the header of this JPEG is damaged"):
        decode(stripes()[:30])


def bombs() -> dict[str, bytes]:
    jpeg = bytearray(stripes())
    struct.pack_into(">HH", jpeg, jpeg.index(b"\xff\xc0") + 5, 60_000, 60_000)
    png = bytearray(stripes("PNG"))
    struct.pack_into(">II", png, 16, 60_000, 60_000)
    bmp = bytearray(stripes("BMP"))
    struct.pack_into("<ii", bmp, 18, 60_000, -60_000)
    gif = bytearray(stripes("GIF", "P"))
    struct.pack_into("<HH", gif, 6, 60_000, 60_000)
    return {"jpeg": bytes(jpeg), "png": bytes(png), "bmp": bytes(bmp), "gif": bytes(gif)}


@pytest.mark.parametrize("name", ["jpeg", "png", "bmp", "gif"])
def test_a_bomb_is_refused_before_it_takes_memory(name: str) -> None:
    data = bombs()[name]
    tracemalloc.start()
    with pytest.raises(BadContainer, match=r"has 60000 x 60000 pixels.*pack --resize"):
        decode(data)
    with pytest.raises(BadContainer, match="has 60000 x 60000 pixels"):
        photos.RandomResizedCrop(32)(data, np.random.default_rng(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


_WHOLE = [
    *(stripes(kind, size=(40, 30)) for kind in ("JPEG", "PNG", "WEBP", "TIFF", "BMP")),
    stripes("GIF", "P", (40, 30)),
    stripes("JPEG", "CMYK", (40, 30)),
    stripes("JPEG", "RGB", (40, 30), progressive=True),
    stripes("TIFF", "RGB", (40, 30), compression="tiff_lzw"),
]


@pytest.mark.filterwarnings("ignore")  # Pillow's, of metadata
@given(st.data())
def test_damaged_photos_are_decoded_or_bad_containers(data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from(_WHOLE)))
    for _ in range(data.draw(st.integers(1, 6))):
        # Headers are where the traps lie.
        most = data.draw(st.sampled_from([40, 300, len(whole)]))
        whole[data.draw(st.integers(0, min(most, len(whole)) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(whole)] * 3 + [len(whole) // 2]))
    try:
        found = decode(bytes(whole[:end]))
    except BadContainer as error:
        if "<_io" in str(error):  # nothing that a user cannot read
            raise
        with pytest.raises(BadContainer):
            photos.Resize(8)(bytes(whole[:end]), np.random.default_rng(1))
    else:
        assert (found.dtype, found.ndim, found.shape[2]) == (np.uint8, 3, 3)
        photos.Resize(8)(bytes(whole[:end]), np.random.default_rng(1))


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    png, jpeg = stripes("PNG"), stripes()
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert decode(jpeg).shape == (400, 600, 3)
    with pytest.raises(UserError, match=r"pip install 'rankup\[train\]'"):
        decode(png)


def test_without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    monkeypatch.delitem(sys.modules, "rankup.data.photos.decoding")
    with pytest.raises(UserError, match=r"simplejpeg: pip install 'rankup\[train\]'"):
        importlib.import_module("rankup.data.photos.decoding")
