"""What is said of images on the way, what is left out, and what is encoded anew."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rankup.data import opened
from rankup.data.pack import journal, spool
from rankup.data.pack.command import pack

from .made import Running, made, request, run


def _jpeg(width: int, height: int, seed: int = 0, **options: Any) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    out = io.BytesIO()
    image = Image.fromarray(pixels)
    if options.pop("cmyk", False):
        image = image.convert("CMYK")
    image.save(out, options.pop("kind", "JPEG"), **options)
    return out.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve good ones, and of each kind of problem one."""
    folder = tmp_path / "photos"
    files = {f"good/{number:02d}.jpg": _jpeg(40 + number, 30, number) for number in range(12)}
    files |= {
        "odd/cmyk.jpg": _jpeg(40, 30, cmyk=True),
        "odd/progressive.jpg": _jpeg(40, 30, progressive=True),
        "odd/png.jpg": _jpeg(40, 30, kind="PNG"),
        "bad/cut.jpg": _jpeg(40, 30)[:-200],
        "bad/empty.jpg": b"",
        "bad/text.jpg": b"this is no image",
        "odd/notes.txt": b"text",
    }
    for name, data in files.items():
        path = folder / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


PROBLEMS = {
    "train/bad/cut.jpg": ["truncated"],
    "train/bad/empty.jpg": ["empty"],
    "train/bad/text.jpg": ["no image"],
    "train/odd/cmyk.jpg": ["cmyk"],
    "train/odd/png.jpg": ["not what its name says"],
    "train/odd/progressive.jpg": ["progressive"],
}


def _report(out: Path) -> dict[str, Any]:
    path = out / "report.json" if out.is_dir() else out.with_name(f"{out.name}.report.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("container", ["hdf5", "arrow"])
def test_problems_are_listed(
    tmp_path: Path, photos: Path, container: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = request(photos, tmp_path, container)
    assert run(asked) == 0
    report = _report(Path(asked.out))
    assert {one["sample"]: one["problems"] for one in report["images"]["listed"]} == PROBLEMS
    assert report["samples"] == 19
    assert "images: 1 cmyk, 1 empty" in capsys.readouterr().out


def test_damaged_ones_end_the_pack(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = request(photos, tmp_path, "hdf5", bad="fail")
    assert run(asked) == 2
    said = capsys.readouterr().err
    assert "3 damaged images" in said
    assert "train/bad/cut.jpg: truncated" in said
    assert "--bad skip" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


@pytest.mark.parametrize("container", ["hdf5", "squashfs"])
def test_resize(tmp_path: Path, photos: Path, container: str) -> None:
    asked = request(photos, tmp_path, container, resize=16)
    assert run(asked) == 0
    samples = opened.open(asked.out)
    index = samples.index
    assert len(index) == 19
    for row in range(len(index)):
        key, data = index.keys.text(row), bytes(samples.read(row))
        if key.startswith("good/") or key == "odd/cmyk.jpg":
            image = Image.open(io.BytesIO(data))
            assert min(image.size) == 16
            assert image.mode == "RGB"
        elif not key.startswith("odd/p"):
            assert data == (photos / "train" / key).read_bytes()
    # What cannot be decoded is kept as it is, and listed.
    listed = {
        one["sample"]: one["problems"] for one in _report(Path(asked.out))["images"]["listed"]
    }
    assert listed["train/bad/cut.jpg"] == ["truncated", "undecodable"]
    assert listed["train/odd/progressive.jpg"] == ["progressive"]
    # Two of them are byte-identical.
    again = request(photos, tmp_path / "again", container, resize=16, workers=1)
    assert run(again) == 0
    assert made(Path(again.out)) == made(Path(asked.out))


def test_resize_and_skip(tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Only a decoder finds that the Huffman tables of this one are none.
    data = bytearray(_jpeg(200, 150))
    at = data.index(b"\xff\xc4")
    data[at + 5 : at + 21] = b"\xff" * 16
    (photos / "train" / "good" / "hollow.jpg").write_bytes(data)
    asked = request(photos, tmp_path, "tar", resize=16, bad="skip")
    assert run(asked) == 0
    keys = [key.decode() for key in opened.open(asked.out).index.keys]
    report = _report(Path(asked.out))
    gone = [f"train/bad/{name}.jpg" for name in ("cut", "empty", "text")]
    assert sorted(report["left_out"]) == [*gone, "train/good/hollow.jpg"]
    assert report["samples"] == len(keys) == 20 - 4
    assert "4 samples left out: see " in capsys.readouterr().out
    asked = request(photos, tmp_path / "kept", "hdf5", resize=16)
    assert run(asked) == 0
    assert "4 images could not be encoded anew and stand as they were" in capsys.readouterr().out
    assert _report(Path(asked.out))["left_out"] == []


def test_a_killed_resize_goes_on(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "ROWS", 3)
    whole = request(photos, tmp_path / "whole", "tar", resize=16)
    assert run(whole) == 0
    asked = request(photos, tmp_path, "tar", resize=16, resume=True, workers=2)
    parts = tmp_path / "out.part" / "spool" / "parts.jsonl"
    real = journal.append

    def before() -> None:
        def deadly(path: Path, records: Any) -> None:
            if parts.exists():
                os.killpg(0, signal.SIGKILL)
            real(path, records)

        monkeypatch.setattr(journal, "append", deadly)

    code, said = Running(asked, tmp_path / "log", before).wait()
    assert code == -signal.SIGKILL, said
    # Nothing was synced, and another machine goes on: nothing of it is believed.
    lost = json.loads(parts.read_text())
    parts.write_text(json.dumps({**lost, "boot": "another"}))
    (parts.parent / f"{lost['part']:06d}.bin").write_bytes(b"")
    assert pack(asked) == 0
    assert made(Path(asked.out)) == made(Path(whole.out))
    assert _report(Path(asked.out))["images"] == _report(Path(whole.out))["images"]
