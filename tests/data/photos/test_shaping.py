"""Transforms of photos against the same done slowly, and what they do to their process."""

from __future__ import annotations

import hashlib
import io
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rankup.base.errors import UserError
from rankup.data import Loader, PackedDataset, photos, transforms
from rankup.data.errors import BadContainer
from rankup.data.photos import CenterCrop, RandomResizedCrop, Resize, shaping
from rankup.data.transforms import Shaped

from .pictures import apart, by_pillow, real, stripes

_ALL = [RandomResizedCrop(96), CenterCrop(96), Resize(96, 128)]


def resized(photo: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[Any]:
    """As floats, antialiased, rounded once at the end: what torchvision does to float tensors."""
    batch = torch.from_numpy(np.ascontiguousarray(photo)).permute(2, 0, 1)[None].float()
    small = F.interpolate(batch, (height, width), mode="bilinear", antialias=True)
    return np.asarray(small[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy())


def close(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    far = apart(found, expected)
    assert far.max() <= 2  # bytes are rounded twice, after each direction
    assert far.mean() < 0.5 or far.size < 100


@pytest.fixture(params=[True, False], ids=["torch", "pillow"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether torch resizes, as on x86, or Pillow, as on ARM."""
    monkeypatch.setattr(shaping, "TORCH_IS_FAST", request.param)
    return bool(request.param)


# Smaller than the parts, and larger.
@pytest.mark.parametrize("size", [8, 96])
def test_random_resized_crop_is_what_it_says(
    data_root: Path | None, size: int, either: bool
) -> None:
    transform = RandomResizedCrop(size, scaled=False)
    flips = 0
    for number, data in enumerate(real(data_root, 12)):
        found = transform(data, transforms.rng(5, number))
        rng = transforms.rng(5, number)
        whole = photos.decode(data)
        (top, left, down, across), *_, flip = transform.view(*whole.shape[:2], rng)
        expected = resized(whole[top : top + down, left : left + across], size, size)
        if flip:
            flips += 1
            expected = expected[:, ::-1]
        close(found, expected)
    assert 1 < flips < 11


def test_flip_is_as_often_as_asked() -> None:
    data = stripes(size=(64, 48))
    whole = {"scale": (1.0, 1.0), "ratio": (4 / 3, 4 / 3)}
    plain = Resize(40)(data, transforms.rng(1, 1))

    def flipped(flip: float) -> list[bool]:
        transform = RandomResizedCrop(40, flip=flip, **whole)  # type: ignore[arg-type]
        made = [transform(data, transforms.rng(1, number)) for number in range(40)]
        found = [bool((one == plain[:, ::-1]).all()) for one in made]
        assert found == [not (one == plain).all() for one in made]
        return found

    assert not any(flipped(0))
    assert all(flipped(1))
    assert 8 < sum(flipped(0.5)) < 32
    assert 0 < sum(flipped(0.1)) < 12


def test_center_crop_is_what_it_says(data_root: Path | None) -> None:
    for data in [*real(data_root, 8), stripes("PNG", size=(90, 300))]:
        photo = by_pillow(data)
        height, width = photo.shape[:2]
        for size, resize in ((96, None), (96, 96), (224, 230)):
            shorter = resize or 110
            scale = shorter / min(height, width)
            down = shorter if height <= width else int(shorter * height / width)
            across = int(shorter * width / height) if height <= width else shorter
            assert abs(down - height * scale) < 1
            small = resized(photo, down, across)
            top, left = round((down - size) / 2), round((across - size) / 2)
            found = CenterCrop(size, resize, scaled=False)(data, transforms.rng(1, 1))
            close(found, small[top : top + size, left : left + size])


def test_resize_is_what_it_says(data_root: Path | None) -> None:
    for data in real(data_root, 8):
        for height, width in ((96, 160), (160, 160)):
            found = Resize(height, width, scaled=False)(data, transforms.rng(1, 1))
            close(found, resized(by_pillow(data), height, width))
    (data,) = real(data_root, 1)
    assert Resize(50)(data, transforms.rng(1, 1)).shape == (50, 50, 3)
    # Pillow's own, with the same filter.
    with Image.open(io.BytesIO(data)) as image:
        small = np.asarray(image.convert("RGB").resize((80, 60), Image.Resampling.BILINEAR))
    close(Resize(60, 80, scaled=False)(data, transforms.rng(1, 1)), small)


@pytest.mark.parametrize("kind", [Resize, RandomResizedCrop])
def test_decoding_at_a_half_changes_little(
    data_root: Path | None, kind: type[Resize] | type[RandomResizedCrop]
) -> None:
    far = []
    for number, data in enumerate(real(data_root, 10)):
        exact = kind(64, scaled=False)(data, transforms.rng(2, number))
        found = kind(64, scaled=True)(data, transforms.rng(2, number))
        if np.array_equal(found, exact):
            continue
        far.append(apart(found, exact).mean())
        inner = (slice(2, -2), slice(2, -2))
        for axis in (0, 1):
            for step in (-1, 1):
                moved = np.roll(exact, step, axis)
                assert apart(found, exact)[inner].mean() < apart(found, moved)[inner].mean()
    assert len(far) > 3
    assert np.mean(far) < 5  # moved by a pixel it is 11


def test_the_part_of_a_photo_decoded_at_a_half_is_the_same_part() -> None:
    data = stripes("JPEG", size=(1600, 1200), quality=97)
    for number in range(6):
        exact = RandomResizedCrop(60, scaled=False)(data, transforms.rng(3, number))
        found = RandomResizedCrop(60)(data, transforms.rng(3, number))
        # The gradients are of 255 / 1600 a pixel: a part that is 8 pixels off shows.
        assert apart(found, exact)[..., 0].mean() < 0.9
        assert apart(found, exact)[..., 1].mean() < 0.9


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 3), (7, 7), (3000, 2), (2, 3000), (17, 9)])
def test_photos_of_odd_sizes(size: tuple[int, int], either: bool) -> None:
    data = stripes("JPEG" if either else "PNG", size=size)
    for number in range(3):
        for side in (1, 7):
            found = Resize(side, scaled=False)(data, transforms.rng(1, number))
            close(found, resized(by_pillow(data), side, side))
            assert RandomResizedCrop(side)(data, transforms.rng(1, number)).shape == (side, side, 3)
        assert CenterCrop(8)(data, transforms.rng(1, number)).shape == (8, 8, 3)


def test_a_photo_too_narrow_for_its_middle_is_refused_before_it_takes_memory() -> None:
    with pytest.raises(BadContainer, match="60000 x 1 pixels, is too narrow"):
        CenterCrop(224)(stripes("PNG", size=(60_000, 1)), transforms.rng(1, 1))


@pytest.mark.parametrize("transform", _ALL, ids=repr)
def test_a_sample_is_written_where_it_belongs(transform: Shaped, data_root: Path | None) -> None:
    assert isinstance(transform, Shaped)
    (data,) = real(data_root, 1)
    for number in range(4):
        expected = transform(data, transforms.rng(1, number))
        assert (expected.shape, expected.dtype) == (transform.shape, transform.dtype)
        batch = np.full((3, *transform.shape), 7, np.uint8)
        transform.into(data, transforms.rng(1, number), batch[1])
        assert np.array_equal(batch[1], expected)
        assert (batch[[0, 2]] == 7).all()
        # Also where the rows do not lie together.
        wide = np.full((transform.shape[0], 2 * transform.shape[1], 3), 7, np.uint8)
        transform.into(data, transforms.rng(1, number), wide[:, ::2])
        assert np.array_equal(wide[:, ::2], expected)
        assert (wide[:, 1::2] == 7).all()


def test_threads_make_the_same_samples_as_one(data_root: Path | None) -> None:
    data = real(data_root, 12)
    for transform in _ALL:
        expected = [transform(one, transforms.rng(4, n)) for n, one in enumerate(data)]
        found: dict[tuple[int, int], Any] = {}
        start = threading.Barrier(4)

        def work(
            me: int, transform: Any = transform, found: Any = found, start: Any = start
        ) -> None:
            start.wait(200)
            for n in range(len(data)):
                at = (n + 3 * me) % len(data)
                found[me, at] = transform(data[at], transforms.rng(4, at))

        threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == 4 * len(data)
        assert all(np.array_equal(one, expected[n]) for (_, n), one in found.items())


_CHILD = """
import hashlib, pickle, sys
transform, data = pickle.load(sys.stdin.buffer)
from rankup.data import transforms
digest = hashlib.sha256()
for number, one in enumerate(data):
    digest.update(transform(one, transforms.rng(4, number)))
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_another_process_with_another_number_of_threads_makes_the_same_samples(
    data_root: Path | None,
) -> None:
    data = real(data_root, 12)
    digest = hashlib.sha256()
    for number, one in enumerate(data):
        digest.update(_ALL[0](one, transforms.rng(4, number)))
    run = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=pickle.dumps((_ALL[0], data)),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=250,
    )
    assert run.stdout.decode().split() == [digest.hexdigest()]


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts Linux' threads")
def test_no_threads_are_made_beside_those_of_the_training_loop(
    data_root: Path | None, either: bool
) -> None:
    if either and not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("on this processor it is Pillow that resizes")
    data = [*real(data_root, 4), stripes(size=(500, 500))]  # which is as large already
    counts: dict[str, int] = {}

    def tasks() -> int:
        return len(os.listdir("/proc/self/task"))

    def work() -> None:
        counts["before"] = tasks()
        for size in (96, 500):
            for transform in (
                RandomResizedCrop(size, flip=1),
                RandomResizedCrop(size, flip=0),
                CenterCrop(size),
                Resize(size),
            ):
                for number, one in enumerate(data):
                    transform(one, transforms.rng(1, number))
        counts["after"] = tasks()
        torch.ones(1 << 20).add_(1)  # this does
        counts["with torch's"] = tasks()

    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert counts["after"] == counts["before"]
    assert counts["with torch's"] > counts["after"]


def test_batches_of_a_loader_are_channels_last(data_root: Path | None, tmp_path: Path) -> None:
    data = real(data_root, 6)
    for number, one in enumerate(data):
        path = tmp_path / "photos" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(one)
    dataset = PackedDataset(tmp_path / "photos", transform=CenterCrop(32))
    loader = Loader(dataset, 4, shuffle=False, workers=2, rank=0, world_size=1, pin_memory=False)
    batches = list(loader)
    loader.close()
    assert [tuple(images.shape) for images, _ in batches] == [(4, 3, 32, 32), (2, 3, 32, 32)]
    order = [0, 2, 4, 1, 3, 5]  # by class
    for place, number in enumerate(order):
        image = batches[place // 4][0][place % 4]
        expected = CenterCrop(32)(data[number], transforms.rng(1, 1))
        assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)
        assert image.stride() == (1, 96, 3)
    ready = photos.normalize(batches[0][0])
    assert ready.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RandomResizedCrop(0), "size=0 has to be a whole number"),
        (lambda: RandomResizedCrop(224.0), "size=224.0"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(224, scale=(0.0, 1.0)), r"scale=\(0.0, 1.0\)"),
        (lambda: RandomResizedCrop(224, scale=(0.5, 1.1)), "at most 1"),
        (lambda: RandomResizedCrop(224, scale=(0.5, 0.1)), "least, largest"),
        (lambda: RandomResizedCrop(224, ratio=(0, 1)), "ratio="),
        (lambda: RandomResizedCrop(224, ratio=(1, float("inf"))), "ratio="),
        (lambda: RandomResizedCrop(224, scale=0.5), "scale=0.5"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(224, flip=1.5), "flip=1.5: it is a probability"),
        (lambda: CenterCrop(224, 223), "resize=223 is less than size=224"),
        (lambda: CenterCrop(224, 256.0), "resize=256.0"),  # type: ignore[arg-type]
        (lambda: CenterCrop(-1), "size=-1"),
        (lambda: Resize(8, 0), "width=0"),
    ],
)
def test_values_that_make_no_sense(make: Callable[[], object], match: str) -> None:
    with pytest.raises(UserError, match=match):
        make()


_SIDES = st.one_of(st.integers(1, 12), st.integers(1, 70_000))


@given(_SIDES, _SIDES, st.integers(0, 2**32))
def test_a_part_lies_inside_the_photo(height: int, width: int, seed: int) -> None:
    top, left, down, across = (
        RandomResizedCrop(8).view(height, width, np.random.default_rng(seed)).part
    )
    assert 0 <= top < top + down <= height
    assert 0 <= left < left + across <= width


def test_parts_are_of_the_area_and_shape_that_was_asked_for() -> None:
    rng = np.random.default_rng(1)
    drawn = np.array([RandomResizedCrop(8).view(300, 400, rng).part for _ in range(4000)])
    top, left, down, across = drawn.T
    area, shape = down * across / (300 * 400), across / down
    assert 0.075 < area.min() < 0.1
    assert 0.97 < area.max() <= 1
    assert 0.73 < shape.min() < 0.77
    assert 1.3 < shape.max() < 1.36
    # Small ones fit nearly everywhere: they are as often upright as not, and their place is even.
    small = area < 0.2
    assert abs(np.log(shape[small]).mean()) < 0.02
    assert abs((top[small] / (300 - down[small])).mean() - 0.5) < 0.03
    assert abs((left[small] / (400 - across[small])).mean() - 0.5) < 0.03


def test_the_middle_square() -> None:
    def centre(height: int, width: int, size: int, resize: int | None = None) -> tuple[int, ...]:
        found = CenterCrop(size, resize).view(height, width, np.random.default_rng())
        assert found.part == (0, 0, height, width)
        return *found.size, *found.corner

    assert centre(375, 500, 224) == (256, 341, 16, 58)  # 58.5 to the even one
    assert centre(500, 375, 224) == (341, 256, 58, 16)
    assert centre(375, 500, 224, 224) == (224, 298, 0, 37)
    assert centre(1, 1, 8) == (9, 9, 0, 0)  # 0.5 to the even one
    for height, width in ((10, 7000), (97, 100), (333, 333)):
        down, across, top, left = centre(height, width, 160)
        assert min(down, across) == round(160 * 256 / 224)
        assert math.isclose(across / down, width / height, rel_tol=0.01)
        assert 0 <= top <= down - 160
        assert 0 <= left <= across - 160
