"""The recipe `image-classification`: the same run on any ranks, its data, its predictions."""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rankup.base.errors import UserError
from rankup.data.batches import BatchRequest
from rankup.parallel.initial import initialize
from rankup.recipes import Asked, find
from rankup.recipes.image_classification import ImageClassification, generate, patience
from rankup.recipes.image_options import (
    DRAWINGS,
    KINDS,
    ImageClassificationOptions,
    draw,
    picture,
    read_classes,
)
from rankup.recipes.models.xresnet import Norm, XResNet
from rankup.runtime.world import World
from rankup.site import rundir
from rankup.train.checkpoint import candidates
from tests.gallery import Gallery
from tests.pool import RankPool
from tests.train.runs import Report, losses, records, train_task

CPU = torch.device("cpu")
OPTIONS = ImageClassificationOptions(
    12, 4, 4, optimizer="sgd", lr=0.05, model="xresnet18", size=16, workers=1,
    valid_every=4, checkpoint_every=4,
)  # fmt: skip


def _train(
    world: World, run: Path, options: ImageClassificationOptions, data: Path, resume: bool = False
) -> Report:
    task = ImageClassification(options, data, world.device)
    return train_task(world, task, options, run, resume)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory as `prepare` leaves it."""
    folder = tmp_path_factory.mktemp("prepared")
    OPTIONS.prepare(folder)
    return folder


@pytest.fixture
def task(prepared: Path) -> ImageClassification:
    return ImageClassification(OPTIONS, prepared, CPU)


def test_same_numbers_on_one_rank_and_two(
    ranks: RankPool, gallery: Gallery, tmp_path: Path
) -> None:
    two = gallery.run("images")
    options = find("image-classification").parse(rundir.read(two).args)
    ranks.run(1, _train, tmp_path / "one", options, two)
    _assert_same(tmp_path / "one", two)


@pytest.mark.slow
def test_same_numbers_sharded_and_frozen_and_after_a_resume(
    ranks: RankPool, tmp_path: Path, prepared: Path
) -> None:
    options = replace(OPTIONS, strategy="fsdp", frozen_epochs=1, checkpoint_every=2)
    _compare(ranks, tmp_path, prepared, options)
    two = tmp_path / "two"
    before = losses(two)
    candidates(two / "checkpoints")[0][0].directory.rename(tmp_path / "last")
    # From step 2 on: also what augmentation drew there is the same.
    again = ranks.run(2, _train, two, options, prepared, True)
    assert "step 2" in again[0].output
    assert losses(two) == before


def _compare(
    ranks: RankPool, folder: Path, prepared: Path, options: ImageClassificationOptions
) -> None:
    ranks.run(1, _train, folder / "one", replace(options, strategy=None), prepared)
    ranks.run(2, _train, folder / "two", options, prepared)
    _assert_same(folder / "one", folder / "two")


def _assert_same(one: Path, two: Path) -> None:
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    last, other = records(one)[-1], records(two)[-1]
    for name in ("valid_loss", "valid_top1", "valid_top5"):
        assert other[name] == pytest.approx(last[name], rel=1e-3), name
    assert 0 < last["valid_top1"] < last["valid_top5"] <= 1


@pytest.mark.slow
def test_a_frozen_epoch_trains_the_head_and_the_norms_alone(
    ranks: RankPool, tmp_path: Path, prepared: Path
) -> None:
    options = replace(OPTIONS, steps=2, frozen_epochs=1)
    ranks.run(1, _train, tmp_path, options, prepared)
    start = XResNet("xresnet18", 10)
    initialize(start, 0)
    before = start.state_dict()
    after = torch.load(tmp_path / "model-final.pt", weights_only=True)
    norms = {name for name, module in start.named_modules() if isinstance(module, Norm)}
    for name, _ in start.named_parameters():
        frozen = name.rpartition(".")[0] not in {"head", *norms}
        moved = not torch.equal(before[name], after[name])
        # The scale of a block's last norm is zero, so what stands before it has no gradient yet.
        assert not (frozen and moved), name
    assert not torch.equal(before["head.weight"], after["head.weight"])
    assert not torch.equal(before["stem.1.weight"], after["stem.1.weight"])


def test_what_a_sample_becomes_hangs_on_seed_epoch_and_sample(task: ImageClassification) -> None:
    def images(samples: list[int], epoch: int = 0, seed: int = 0) -> torch.Tensor:
        count = len(samples)
        made, labels = task.train.once(BatchRequest.of(np.array(samples), seed, epoch))
        assert made.dtype == torch.uint8
        assert made.shape == (count, 3, 16, 16)
        kinds = [list(KINDS)[sample // 32] for sample in samples]
        assert [task.classes[label] for label in labels.tolist()] == kinds
        return made

    together = images([3, 50, 100])
    assert torch.equal(images([50])[0], together[1])
    assert not torch.equal(images([50], epoch=1)[0], together[1])
    assert not torch.equal(images([50], seed=1)[0], together[1])
    requests = [BatchRequest.of(np.array([3, 50, 100]), 0, epoch) for epoch in (0, 1, 2)]
    ahead = [batch[0] for _, batch in task.train.ahead(iter(requests))]
    assert torch.equal(ahead[0], together)
    assert torch.equal(ahead[2], images([3, 50, 100], epoch=2))
    seen = task.valid.batch(torch.tensor([5]))[0]
    assert torch.equal(task.valid.batch(torch.tensor([4, 5]))[0][1], seen[0]), "not augmented"


def test_top1_and_top5_are_counted_by_hand(task: ImageClassification) -> None:
    class Fixed(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.arange(10.0).expand(len(images), 10)  # the last class is the likeliest

    images = torch.zeros(4, 3, 16, 16, dtype=torch.uint8)
    batch = images, torch.tensor([9, 5, 4, 0])
    loss, found = task.measure(Fixed(), batch)
    assert found.tolist() == [[1, 4], [2, 4]]
    assert float(loss) == pytest.approx(float(task.loss(Fixed(), batch)))


@pytest.mark.parametrize(
    ("name", "torchvisions"),
    [("xresnet18", 11_689_512), ("xresnet34", 21_797_672), ("xresnet50", 25_557_032)],
)
def test_sizes_are_those_of_resnets_but_for_the_stem(name: str, torchvisions: int) -> None:
    with torch.device("meta"):
        model = XResNet(name, 1000)
    large = 3 * 64 * 7**2 + 2 * 64
    small = (3 * 32 + 32 * 32 + 32 * 64) * 3**2 + 2 * (32 + 32 + 64)
    assert sum(p.numel() for p in model.parameters()) == torchvisions - large + small


@pytest.mark.parametrize(  # both kinds of blocks
    "name", ["xresnet18", pytest.param("xresnet50", marks=pytest.mark.slow)]
)
def test_a_network_keeps_channels_last_and_its_blocks_start_as_shortcuts(name: str) -> None:
    model = XResNet(name, 7)
    initialize(model, 0)
    formats: list[bool] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(
                lambda *seen: formats.append(
                    seen[2].is_contiguous(memory_format=torch.channels_last)
                )
            )
    images = torch.rand(2, 3, 33, 47).to(memory_format=torch.channels_last)  # odd sizes, too
    assert model(images).shape == (2, 7)
    assert len(formats) > 15
    assert all(formats)
    block = model.blocks[1]
    features = torch.rand(2, 64 if name != "xresnet50" else 256, 4, 4)
    assert torch.allclose(block(features), features + 1e-3), "its norm has a bias of 0.001"


def test_predictions_name_photos_and_what_is_none(tmp_path: Path, prepared: Path) -> None:
    import simplejpeg

    model = XResNet("xresnet18", 10)
    initialize(model, 0)
    photo = simplejpeg.encode_jpeg(picture("disc", np.random.default_rng(0)))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.jpg").write_bytes(photo)
    (tmp_path / "a.JPG").write_bytes(photo)
    (tmp_path / "torn\x1b.png").write_bytes(b"no photo")
    (tmp_path / "notes.txt").write_text("hello")
    tensors = model.state_dict()

    def lines(path: Path | None) -> list[str]:
        return list(generate(OPTIONS, prepared, tensors, Asked(file=path)))

    first, second, third = lines(tmp_path)
    assert first.startswith("a.JPG: ")
    assert second == first.replace("a.JPG", "sub/b.jpg")
    assert third.startswith("torn")
    assert "cannot be read" in third
    assert "\x1b" not in third
    told = [float(word.split()[-1]) for word in first.partition(": ")[2].split(", ")]
    assert len(told) == 5
    assert told == sorted(told, reverse=True)
    assert sum(told) <= 1
    assert lines(tmp_path / "a.JPG") == [first]
    with tarfile.open(tmp_path / "two.tar", "w") as tar:
        tar.add(tmp_path / "a.JPG", "1.jpg")
        tar.add(tmp_path / "a.JPG", "2.jpg")
    assert [line.partition(":")[2] for line in lines(tmp_path / "two.tar")] == [
        first.partition(":")[2]
    ] * 2
    with pytest.raises(UserError, match="does not exist"):
        lines(tmp_path / "missing")
    with pytest.raises(UserError, match="--file with a photo"):
        lines(None)
    with pytest.raises(UserError, match="PROMPT means nothing"):
        list(generate(OPTIONS, prepared, tensors, Asked(prompt="what is this?")))


def test_drawings_are_of_ten_kinds_and_the_same_each_time(tmp_path: Path, prepared: Path) -> None:
    assert read_classes(prepared) == sorted(KINDS)
    draw(tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == (prepared / DRAWINGS).read_bytes()


def _folders(root: Path, **splits: int) -> Path:
    import simplejpeg

    rng = np.random.default_rng(0)
    for split, count in splits.items():
        for kind in ("disc", "ring"):
            folder = root / split / kind
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(picture(kind, rng)))
    return root


def test_without_a_validation_split_a_tenth_is_held_out(tmp_path: Path) -> None:
    data = _folders(tmp_path / "data", train=10)
    options = replace(OPTIONS, data=str(data))
    options.prepare(tmp_path)
    task = ImageClassification(options, tmp_path, CPU)
    assert (len(task.train), len(task.valid), len(task.test)) == (18, 2, 0)
    rows = [
        {one.row(n) for n in range(len(one))} for one in (task.train.dataset, task.valid.dataset)
    ]
    assert rows[0] | rows[1] == set(range(20))
    assert not rows[0] & rows[1]


@pytest.mark.parametrize("names", [("train", "val", "test"), ("training", "dev", "testing")])
def test_test_photos_are_found(tmp_path: Path, names: tuple[str, ...]) -> None:
    data = _folders(tmp_path / "data", **dict(zip(names, (2, 1, 3), strict=True)))
    options = replace(OPTIONS, data=str(data))
    options.prepare(tmp_path)
    task = ImageClassification(options, tmp_path, CPU)
    assert (len(task.train), len(task.valid), len(task.test)) == (4, 2, 6)


def test_what_cannot_be_trained_on_is_said_before_anything_starts(tmp_path: Path) -> None:
    def refused(data: Path) -> str:
        with pytest.raises(UserError) as error:
            replace(OPTIONS, data=str(data)).prepare(tmp_path)
        return str(error.value)

    assert "missing" in refused(tmp_path / "missing")
    np.savez(tmp_path / "arrays.npz", data=np.zeros((4, 3)), labels=np.arange(4))
    assert "arrays" in refused(tmp_path / "arrays.npz") or "labels" in refused(
        tmp_path / "arrays.npz"
    )
    one = tmp_path / "one"
    shutil.copytree(_folders(tmp_path / "data", train=2) / "train" / "disc", one / "train" / "disc")
    assert "one class alone, 'disc'" in refused(one)


def test_a_single_photo_at_the_end_is_refused_where_its_norm_is_undefined(prepared: Path) -> None:
    options = replace(OPTIONS, global_batch=29, micro_batch=29)  # 320 = 11 * 29 + 1
    with pytest.raises(UserError, match="a single one"):
        ImageClassification(options, prepared, CPU)
    ImageClassification(replace(options, size=33), prepared, CPU)


def test_dali_is_asked_for_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="DALI is not here"):
        replace(OPTIONS, decoder="dali").prepare(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--min-scale", "0"], "--min-scale 0 is a part"),
        (["--smoothing", "1"], "--smoothing 1 leaves nothing"),
        (["--micro-batch", "1"], "batch norm takes its mean"),
        (["--warmup", "5"], "one-cycle rises by itself"),
        (["--model", "resnet50"], "xresnet50"),
    ],
)
def test_options_that_make_no_sense_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        find("image-classification").parse(words)


@pytest.mark.parametrize("cut", [{"tp": 2}, {"pp": 2}])
def test_a_split_that_batch_norm_cannot_take_is_refused(cut: dict[str, int]) -> None:
    with pytest.raises(UserError, match="running statistics"):
        replace(OPTIONS, **cut).layout(2, 2)


def test_drawings_are_learnt_in_their_own_size() -> None:
    """Without photos: xresnet50 at 160 pixels would take a CPU ten minutes for 320 drawings."""
    own = find("image-classification").parse([])
    assert (own.model, own.size, own.global_batch) == ("xresnet18", 32, 32)
    said = find("image-classification").parse(["--size", "48", "--global-batch", "64"])
    assert (said.model, said.size, said.global_batch) == ("xresnet18", 48, 64)
    photos = find("image-classification").parse(["--data", "photos.h5"])
    assert (photos.model, photos.size, photos.global_batch) == ("xresnet50", 160, 256)


def test_who_trains_large_photos_on_a_cpu_is_told_so_at_once(prepared: Path) -> None:
    large = replace(OPTIONS, model="xresnet50", size=160, global_batch=256)
    note = patience(ImageClassification(large, prepared, CPU), CPU)
    assert note is not None
    assert "256 photos per step at --size 160" in note
    assert "--tiny" in note
    assert patience(ImageClassification(large, prepared, CPU), torch.device("cuda")) is None
    assert patience(ImageClassification(OPTIONS, prepared, CPU), CPU) is None
