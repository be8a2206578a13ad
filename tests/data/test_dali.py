"""DaliLoader: the same samples, parts and places as a Loader, with pixels made by DALI."""

from __future__ import annotations

import io
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rankup.base.errors import UserError
from rankup.data import BadSample, Loader, PackedDataset, photos
from rankup.data.dali import DaliLoader

from ..slurm.fixtures import require
from .made import pack
from .photos.pictures import real, stripes

Batch = tuple[torch.Tensor, torch.Tensor]
COUNT = 23
CROP = photos.RandomResizedCrop(32, scaled=False)


@pytest.fixture(scope="module", autouse=True)
def dali() -> None:
    try:
        import nvidia.dali  # noqa: F401
    except ImportError as error:
        require(f"no DALI ({error}): pip install 'rankup[dali]'", os.environ)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small photos, no two alike; the label of each is its number."""
    draw = random.Random(3)
    data = []
    for _ in range(COUNT):
        size = draw.randrange(60, 140), draw.randrange(60, 140)
        data.append(stripes(size=size, quality=draw.randrange(60, 95)))
    return made(tmp_path_factory.mktemp("dali") / "photos", data)


def made(root: Path, data: Sequence[bytes]) -> Path:
    members = [(f"{row:03}.jpg", one, row) for row, one in enumerate(data)]
    pack(root, {"train": members}, classes=[str(row) for row in range(len(data))])
    return root


def over(
    kind: Callable[..., Loader],
    root: Path,
    batch: int,
    rank: int = 0,
    world: int = 1,
    **options: Any,
) -> Loader:
    transform = options.pop("transform", CROP)
    data = PackedDataset(root, "train", transform, on_bad=options.pop("on_bad", "raise"))
    own: dict[str, Any] = {"device": "cpu"} if kind is DaliLoader else {}
    number = options.pop("workers", 1 if kind is DaliLoader else 0)
    options = {"seed": 5, "quiet": True, **options, **own}
    return kind(data, batch, rank=rank, world_size=world, workers=number, **options)


def epoch(loader: Loader, most: int | None = None) -> list[Batch]:
    """Copies of the batches of an epoch, or of the first of them."""
    taken = []
    for images, labels in loader:
        taken.append((images.clone(), labels.clone()))
        if len(taken) == most:
            break
    return taken


def take(loader: Loader, use: Callable[[torch.Tensor], object]) -> None:
    for _, labels in loader:
        use(labels)


def joined(ranks: Sequence[Sequence[Batch]]) -> list[Batch]:
    """The global batches."""
    return [
        (torch.cat([one[0] for one in parts]), torch.cat([one[1] for one in parts]))
        for parts in zip(*ranks, strict=True)
    ]


def same(one: Sequence[Batch], other: Sequence[Batch]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) and torch.equal(x, y) for (a, x), (b, y) in zip(one, other, strict=True)
    )


def close(found: torch.Tensor, expected: torch.Tensor, near: int = 1) -> None:
    """Within `near` levels; at the rim, where DALI repeats the last row, within thirty."""
    assert found.shape == expected.shape
    apart = (found.int() - expected.int()).abs()
    assert int(apart[..., 1:-1, 1:-1].max()) <= near
    assert int(apart.max()) <= 30
    assert float(apart.float().mean()) < 1


@pytest.mark.parametrize(
    "transform",
    [
        CROP,
        photos.CenterCrop(31, resize=50),
        photos.Resize(20, 50),
    ],
    ids=str,
)
def test_the_same_photos_as_a_loader_gives(packed: Path, transform: Any) -> None:
    ours = epoch(over(DaliLoader, packed, 6, transform=transform))
    theirs = epoch(over(Loader, packed, 6, transform=transform))
    assert [len(labels) for _, labels in ours] == [6, 6, 6, 5]
    for (images, labels), (expected, classes) in zip(ours, theirs, strict=True):
        assert torch.equal(labels, classes)
        assert images.dtype == torch.uint8
        assert images.stride() == expected.stride()
        close(images, expected)


def test_bytes_do_not_depend_on_the_number_of_ranks(packed: Path) -> None:
    world = 3
    alone = over(DaliLoader, packed, 5)
    ranks = [over(DaliLoader, packed, 5, rank, world) for rank in range(world)]
    for number in range(2):
        expected = epoch(alone)
        assert sorted(torch.cat([y for _, y in expected]).tolist()) == list(range(COUNT))
        assert same(joined([epoch(one) for one in ranks]), expected)
        assert alone.epoch == number + 1
        assert all(one.state_dict() == alone.state_dict() for one in ranks)
    assert not same(expected, epoch(alone))


def test_going_on_where_a_loader_was(packed: Path) -> None:
    """To and fro between the two, at other numbers of ranks; what was made ahead does not count."""
    whole = epoch(over(DaliLoader, packed, 4))
    first = over(DaliLoader, packed, 4, prefetch=3)
    assert same(epoch(first, 2), whole[:2])
    place = first.state_dict()
    assert place["consumed"] == 8
    other = over(Loader, packed, 4)
    other.load_state_dict(place)
    (_, labels) = epoch(other, 1)[0]
    assert torch.equal(labels, whole[2][1])
    ranks = [over(DaliLoader, packed, 4, rank, 3) for rank in range(3)]
    for one in ranks:
        one.load_state_dict(other.state_dict())
    assert same(joined([epoch(one) for one in ranks]), whole[3:])
    assert ranks[0].state_dict() == {**place, "epoch": 1, "consumed": 0}
    with pytest.raises(UserError, match="seed"):
        over(DaliLoader, packed, 4, seed=6).load_state_dict(place)


def test_other_kinds_of_photo(tmp_path: Path) -> None:
    kinds = [("JPEG", "L"), ("JPEG", "CMYK"), ("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P")]
    data = [stripes(kind, mode, (90, 70)) for kind, mode in [*kinds, ("BMP", "RGB")]]
    exif = stripes(
        size=(90, 70), exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06"
    )
    deep = np.random.default_rng(0).integers(0, 1 << 16, (70, 90), np.uint16)
    for kind in ("PNG", "TIFF"):
        out = io.BytesIO()
        Image.fromarray(deep).save(out, kind)
        data.append(out.getvalue())
    root = made(tmp_path / "kinds", [*data, exif, stripes(size=(90, 70), progressive=True)])
    whole: dict[str, Any] = {"transform": photos.CenterCrop(32), "shuffle": False}
    ((found, _),) = epoch(over(DaliLoader, root, 10, **whole))
    ((expected, _),) = epoch(over(Loader, root, 10, **whole))
    close(found, expected, near=2)


BAD = {
    "cut short": lambda: stripes(size=(90, 70))[:-200],
    "no JPEG": lambda: b"no photo at all",
    "DALI cannot decode": lambda: stripes("GIF", "P", (90, 70)),
    "cannot": lambda: stripes("PNG", "RGB", (90, 70))[:300],
}


@pytest.fixture
def damaged(packed: Path, tmp_path: Path) -> Callable[[bytes], Path]:
    """The photos with number 9 in another state."""

    def make(data: bytes) -> Path:
        samples = PackedDataset(packed, "train").samples
        others = [bytes(samples.read(row)) for row in range(COUNT)]
        others[9] = data
        return made(tmp_path / "damaged", others)

    return make


@pytest.mark.parametrize("why", BAD)
def test_a_bad_sample_ends_the_loop_at_its_batch(
    damaged: Callable[[bytes], Path], why: str
) -> None:
    root = damaged(BAD[why]())
    loader = over(DaliLoader, root, 3, shuffle=False, train=True)
    taken: list[int] = []
    with pytest.raises(BadSample, match=rf"train/009.jpg.*{why}"):
        take(loader, lambda labels: taken.extend(labels.tolist()))
    assert taken == list(range(9))
    assert loader.consumed == 9


@pytest.mark.parametrize("why", ["cut short", "DALI cannot decode"])
def test_going_on_without_a_bad_sample(damaged: Callable[[bytes], Path], why: str) -> None:
    root = damaged(BAD[why]())
    ranks = [over(DaliLoader, root, 6, rank, 2, on_bad="drop") for rank in range(2)]
    met = [epoch(one) for one in ranks]
    labels = torch.cat([y for one in met for _, y in one]).tolist()
    assert [bad.name for one in ranks for bad in one.bad] == ["train/009.jpg"]
    assert 9 not in labels
    assert set(labels) == {*range(COUNT)} - {9}
    assert len(labels) == COUNT - 1
    assert same(epoch(over(DaliLoader, root, 6, 0, 2, on_bad="drop")), met[0])


def test_a_failure_that_is_no_samples_is_told(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nvidia.dali

    run = nvidia.dali.Pipeline.run

    def fails(self: Any, **inputs: Any) -> Any:
        if len(inputs["data"]) > 1:
            raise RuntimeError("out of memory")
        return run(self, **inputs)

    monkeypatch.setattr(nvidia.dali.Pipeline, "run", fails)
    with pytest.raises(UserError, match="not at any sample alone: out of memory"):
        epoch(over(DaliLoader, packed, 2, on_bad="drop"))


def test_what_dali_cannot_carry_out(packed: Path) -> None:
    def loader(transform: Any, **options: Any) -> DaliLoader:
        return DaliLoader(
            PackedDataset(packed, "train", transform), 4, rank=0, world_size=1, **options
        )

    with pytest.raises(UserError, match="RandomResizedCrop"):
        loader(lambda data, rng: data)
    with pytest.raises(UserError, match="PackedDataset"):
        DaliLoader([1, 2], 4, rank=0, world_size=1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="workers=0"):
        loader(CROP, workers=0)


def test_without_dali(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(UserError, match=r"pip install 'rankup\[dali\]'"):
        over(DaliLoader, packed, 4)


@pytest.mark.gpu
def test_on_a_gpu(data_root: Path | None, tmp_path: Path) -> None:
    root = made(tmp_path / "gpu", real(data_root, 100))
    for transform in (photos.RandomResizedCrop(160, scaled=False), photos.CenterCrop(160)):
        data = PackedDataset(root, "train", transform)
        options: dict[str, Any] = {"seed": 5, "rank": 0, "world_size": 1, "quiet": True}
        loader = DaliLoader(data, 32, device="cuda", **options)
        whole = []
        expected = list(Loader(data, 32, workers=2, **options))
        for (images, labels), (other, classes) in zip(loader, expected, strict=True):
            assert images.device.type == labels.device.type == "cuda"
            assert images.stride() == other.stride()
            assert torch.equal(labels.cpu(), classes)
            # Decoders of a GPU upsample colours in another way.
            apart = (images.cpu().int() - other.int()).abs().float()
            assert float(apart.mean()) < 3
            whole.append(images.cpu())
        again = DaliLoader(data, 32, device="cuda", **options)
        again.load_state_dict({**again.state_dict(), "consumed": 64})
        for (images, _), before in zip(again, whole[2:], strict=True):
            assert float((images.cpu().int() - before.int()).abs().float().mean()) < 1
