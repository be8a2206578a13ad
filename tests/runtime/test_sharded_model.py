"""`save_sharded_model` and `load_sharded_model`: each rank its parts, any layout reads them."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pickle
import random
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from rankup.runtime.restore import fingerprint
from rankup.runtime.save import full_state, load_full_model, save_full_model
from rankup.runtime.sharded import load_sharded_model, save_sharded_model
from rankup.runtime.world import World, destroy_process_group
from rankup.train.checkpoint import Saved, Saver
from rankup.train.plan import Place
from tests.pool import RankPool

from .killed import until_killed
from .split import SIZES, SMALL, advance, assert_equal, expected, make


def _save(world: World, layout: str, folder: Path) -> None:
    split = make(layout)
    for group in split.optimizer.param_groups:
        group["lr"] = 0.05
    advance(split, range(2))
    save_sharded_model(split.model, folder, split.optimizer, copies=split.copies)


def _load(world: World, layout: str, folder: Path) -> dict[str, Any]:
    split = make(layout, seed=1)
    load_sharded_model(split.model, folder, split.optimizer, copies=split.copies)
    assert split.optimizer.param_groups[0]["lr"] == 0.05
    advance(split, range(2, 3))
    return full_state(split.model, split.copies)


def _expected(world: World) -> dict[str, torch.Tensor]:
    split = make("plain")
    split.optimizer.param_groups[0]["lr"] = 0.05
    advance(split, range(3))
    return split.model.state_dict()


@pytest.mark.parametrize("before", SMALL)
def test_saved_in_one_layout_and_loaded_in_another(
    ranks: RankPool, tmp_path: Path, before: str
) -> None:
    """Each writes once and reads once: the two know nothing of each other."""
    ranks.run(SIZES[before], _save, before, tmp_path / "model")
    after = SMALL[SMALL.index(before) - 1]
    found = ranks.run(SIZES[after], _load, after, tmp_path / "model")[0]
    assert_equal(found, ranks.run(1, _expected)[0])


@pytest.mark.slow
@pytest.mark.parametrize("before", list(SIZES)[::3])
def test_other_layouts_save_and_load(ranks: RankPool, tmp_path: Path, before: str) -> None:
    """What each writes the next two read; more pairs are in `test_checkpoint_layouts.py`."""
    ranks.run(SIZES[before], _save, before, tmp_path / "model")
    wanted = ranks.run(1, _expected)[0]
    layouts = list(SIZES)
    place = layouts.index(before)
    for layout in (*layouts, *layouts)[place + 1 : place + 3]:
        assert_equal(ranks.run(SIZES[layout], _load, layout, tmp_path / "model")[0], wanted)


# --- what is refused, on every rank


def _refused(world: World, layout: str, place: Path, kind: str, change: str = "") -> str:
    split = make(layout)
    if change == "shape" and hasattr(split.model, "norm"):
        split.model.norm = nn.LayerNorm(4)
    load = load_full_model if kind == "full" else load_sharded_model
    try:
        load(split.model, place, split.optimizer if change == "optimizer" else None)
    except (ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _save_bare(world: World, folder: Path) -> None:
    model = make("fsdp").model
    save_sharded_model(model, folder / "sharded")
    save_full_model(model, folder / "full")


@pytest.fixture(scope="module")
def bare(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in both forms, without an optimizer. Copy before use."""
    folder = tmp_path_factory.mktemp("bare")
    ranks.run(2, _save_bare, folder)
    return folder


@pytest.fixture
def saved(bare: Path, tmp_path: Path) -> Path:
    """A copy of these models."""
    shutil.copytree(bare, tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_another_model_is_refused_on_every_rank(ranks: RankPool, saved: Path, kind: str) -> None:
    for said in ranks.run(2, _refused, "pp", saved / kind, kind, "shape"):
        assert "is of another model" in said
        assert "norm.bias: [5] in the" in said
        assert "[4] in this model" in said
    for said in ranks.run(2, _refused, "fsdp", saved / kind, kind, "optimizer"):
        assert "holds no optimizer, only a model" in said
    for said in ranks.run(2, _refused, "ddp", saved / "nowhere", kind):
        assert "FileNotFoundError" in said


def _damage(folder: Path, how: str) -> None:
    [parts] = folder.glob("parts-*")
    if how == "no marker":
        (folder / "COMPLETE").unlink()
    elif how == "marker torn":
        os.truncate(folder / "COMPLETE", 20)
    elif how == "missing":
        (parts / "__1_0.distcp").unlink()
    elif how == "truncated":
        os.truncate(parts / "__0_0.distcp", 100)
    elif how == "hostile":
        data = pickle.dumps(_Touch(folder / "executed"))
        (parts / ".metadata").write_bytes(data)
        about = {"files": {path.name: fingerprint(path) for path in parts.iterdir()}}
        _rewrite_marker(folder, lambda marker: marker.update(about))


class _Touch:
    """Unpickling it runs a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize(
    ("how", "words"),
    {
        "no marker": "its writing was interrupted",
        "marker torn": "COMPLETE is damaged",
        "missing": "__1_0.distcp is missing",
        "truncated": "has 100 bytes instead of",
        "hostile": "refers to posix.system",
    }.items(),
)
def test_a_damaged_folder_is_refused_on_every_rank(
    ranks: RankPool, saved: Path, how: str, words: str
) -> None:
    _damage(saved / "sharded", how)
    for said in ranks.run(2, _refused_anyhow, saved / "sharded"):
        assert words in said
    assert not (saved / "sharded" / "executed").exists()


def _refused_anyhow(world: World, place: Path) -> str:
    try:
        load_sharded_model(make("fsdp").model, place)
    except Exception as error:
        return str(error)
    return ""


def _rewrite_marker(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    about = json.loads((folder / "COMPLETE").read_text())
    about.pop("hash", None)  # a marker of before had none
    change(about)
    (folder / "COMPLETE").write_text(json.dumps(about))


def test_a_marker_cannot_point_elsewhere(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for name in ("model", "other"):
        save_sharded_model(model, tmp_path / name)
    [parts] = (tmp_path / "model").glob("parts-*")
    [elsewhere] = (tmp_path / "other").glob("parts-*")
    elsewhere.rename(tmp_path / "other" / parts.name)
    for there in (f"../other/{parts.name}", "..", str(tmp_path / "other" / parts.name), 7):
        _rewrite_marker(tmp_path / "model", lambda about, there=there: about.update(parts=there))  # type: ignore[misc]
        with pytest.raises(ValueError, match="COMPLETE is damaged"):
            load_sharded_model(model, tmp_path / "model")


def _same(model: nn.Module, folder: Path, extra: dict[str, Any]) -> bool:
    """True where a folder loads as it was written, False where it is refused."""
    fresh = nn.Linear(20, 20)
    optimizer = torch.optim.AdamW(fresh.parameters())
    try:
        found = load_sharded_model(fresh, folder, optimizer)
    except ValueError:
        return False
    assert_equal(fresh.state_dict(), model.state_dict())
    assert found == extra
    [group] = optimizer.param_groups
    assert (group["lr"], group["betas"], len(optimizer.state)) == (0.05, (0.9, 0.999), 2)
    return True


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "COMPLETE"])
def test_no_flipped_bit_is_loaded(tmp_path: Path, name: str) -> None:
    """In the marker one may change a space between two values, but nothing that is read."""
    model, draw = nn.Linear(20, 20), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model(torch.ones(1, 20)).sum().backward()
    optimizer.step()
    extra = {"step": 7, "place": {"seed": 1, "epoch": 2}, "best": 0.25}
    save_sharded_model(model, tmp_path, optimizer, **extra)
    assert _same(model, tmp_path, extra)
    [path] = tmp_path.rglob(name)
    whole = path.read_bytes()
    loaded = 0
    for _ in range(100):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        loaded += _same(model, tmp_path, extra)
    assert loaded == 0 or (name == "COMPLETE" and loaded < 20)


def test_a_folder_of_the_first_version_loads(tmp_path: Path) -> None:
    """Its marker has sizes alone."""
    model, fresh = nn.Linear(2, 2), nn.Linear(2, 2)
    save_sharded_model(model, tmp_path)

    def as_before(about: dict[str, Any]) -> None:
        about["files"] = {name: size for name, (size, _) in about["files"].items()}
        del about["extra"], about["aliases"]

    _rewrite_marker(tmp_path, as_before)
    assert load_sharded_model(fresh, tmp_path) == {}
    assert_equal(fresh.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            {"milestones": Counter([30])},
            r"x\['milestones'\] has the key 30, and keys have to be str",
        ),
        ([0, torch.ones(1)], r"x\[1\] is no number, string, list .* but a Tensor"),
    ],
    ids=["key", "tensor"],
)
def test_what_would_come_back_as_something_else_is_refused(
    tmp_path: Path, extra: Any, said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        save_sharded_model(nn.Linear(2, 2), tmp_path, x=extra)


def test_tuples_come_back_as_lists_and_nan_as_it_is(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    save_sharded_model(model, tmp_path, betas=(0.9, 0.999), best=[{"loss": math.nan}])
    found = load_sharded_model(model, tmp_path)
    assert found["betas"] == [0.9, 0.999]
    assert math.isnan(found["best"][0]["loss"])


# --- beside the training


def _asynchronously(world: World, layout: str, folder: Path) -> dict[str, Any]:
    split = make(layout)
    for step in range(2):
        advance(split, range(step, step + 1))
        done = save_sharded_model(
            split.model,
            folder,
            split.optimizer,
            copies=split.copies,
            asynchronous=True,
            step=step + 1,
        )
    # What changes from now on is not in the folder.
    with torch.no_grad():
        for parameter in split.model.parameters():
            parameter.zero_()
    extra = load_sharded_model(split.model, folder, split.optimizer, copies=split.copies)
    assert extra == {"step": 2}
    assert done.done()
    advance(split, range(2, 3))
    return full_state(split.model, split.copies)


@pytest.mark.parametrize("layout", ["plain", "fsdp", "pp"])
def test_written_beside_the_training(ranks: RankPool, tmp_path: Path, layout: str) -> None:
    found = ranks.run(SIZES[layout], _asynchronously, layout, tmp_path / "model")[0]
    assert_equal(found, ranks.run(1, _three_steps)[0])


def _three_steps(world: World) -> dict[str, torch.Tensor]:
    return expected(3)


def _left_at_once(world: World, folder: Path) -> None:
    save_sharded_model(make("fsdp").model, folder, asynchronous=True)
    destroy_process_group()


def test_who_leaves_the_group_waits_for_what_is_being_written(
    ranks: RankPool, tmp_path: Path
) -> None:
    ranks.run(2, _left_at_once, tmp_path / "model")
    assert ranks.run(2, _refused_anyhow, tmp_path / "model") == ["", ""]


def _no_space_beside(world: World, folder: Path) -> str:
    split = make("fsdp")
    save_sharded_model(split.model, folder)
    with _no_space(world.rank == 1):
        done = save_sharded_model(split.model, folder, asynchronous=True)
        failure = done.exception()
    load_sharded_model(split.model, folder)
    return str(failure)


def test_no_space_on_one_rank_is_told_by_the_future_of_each(
    ranks: RankPool, tmp_path: Path
) -> None:
    for said in ranks.run(2, _no_space_beside, tmp_path):
        assert "File too large" in said


# --- what cannot be written


@contextmanager
def _no_space(here: bool) -> Iterator[None]:
    """Files of this rank cannot grow beyond 100 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if here:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _save_without_space(world: World, folder: Path, kind: str, full: int) -> str:
    split = make("fsdp")
    save = save_full_model if kind == "full" else save_sharded_model
    save(split.model, folder / kind)
    advance(split, range(1))
    try:
        with _no_space(world.rank == full):
            save(split.model, folder / kind)
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(("kind", "full"), [("full", 0), ("sharded", 0), ("sharded", 1)])
def test_no_space_on_one_rank_is_an_error_on_every_rank_and_the_old_one_stays(
    ranks: RankPool, tmp_path: Path, kind: str, full: int
) -> None:
    for said in ranks.run(2, _save_without_space, tmp_path, kind, full):
        assert "File too large" in said
    for said in ranks.run(2, _refused, "fsdp", tmp_path / kind, kind):
        assert said == ""
    left = [path.name for path in (tmp_path / kind).parent.rglob(".*.tmp")]
    assert left == []
    assert len(list(tmp_path.glob("sharded/parts-*"))) == (kind == "sharded")


# --- old or new


def _save_while_taken(world: World, folder: Path) -> str:
    try:
        save_sharded_model(nn.Linear(2, 2), folder)
    except OSError as error:
        return str(error)
    return ""


def test_one_process_saves_at_a_time(ranks: RankPool, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_sharded_model(nn.Linear(2, 2), folder)
    with (folder / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for said in ranks.run(2, _save_while_taken, folder):
            assert "another process is saving into this folder" in said
            assert str(folder) in said
    load_sharded_model(nn.Linear(2, 2), folder)
    assert ranks.run(2, _save_while_taken, folder) == ["", ""]


def test_parts_that_somebody_removed_never_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 2)
    save_sharded_model(model, tmp_path / "model")
    save, [before] = dcp.save, (tmp_path / "model").glob("parts-*")

    def spoiled(*args: Any, **options: Any) -> None:
        save(*args, **options)
        [written] = set((tmp_path / "model").glob("parts-*")) - {before}
        (written / "__0_0.distcp").unlink()

    monkeypatch.setattr(dcp, "save", spoiled)
    with pytest.raises(FileNotFoundError, match="was removed while"):
        save_sharded_model(model, tmp_path / "model")
    load_sharded_model(model, tmp_path / "model")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no")])
def test_a_failure_after_the_marker_leaves_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    model, sync = nn.Linear(2, 2), os.fsync
    save_sharded_model(model, tmp_path / "model")
    marker = tmp_path / "model" / "COMPLETE"
    before = marker.read_text()

    def late(descriptor: int) -> None:
        sync(descriptor)
        if marker.read_text() != before:
            raise error

    nn.init.constant_(model.weight, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", late)
        with pytest.raises(type(error)):
            save_sharded_model(model, tmp_path / "model")
    nn.init.zeros_(model.weight)
    load_sharded_model(model, tmp_path / "model")
    assert (model.weight == 3).all()


def _overwrite_for_ever(folder: Path) -> None:
    torch.set_num_threads(1)  # a forked process has none of OpenMP's threads
    model = nn.Linear(100, 100)
    for number in range(1, 10**6):
        with torch.no_grad():
            model.weight.fill_(number)
            model.bias.fill_(number)
        save_sharded_model(model, folder, asynchronous=number % 2 == 0)


# A file that an earlier test has left open may be collected here; what stands first counts more.
@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.filterwarnings("error")
def test_a_kill_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    draw = random.Random(0)
    model = nn.Linear(100, 100)
    with torch.no_grad():
        model.weight.fill_(0)
        model.bias.fill_(0)
    folder = tmp_path / "model"
    save_sharded_model(model, folder)
    written = 0.0
    marker = folder / "COMPLETE"  # it names the parts, which have another name each time
    for _ in range(10):
        before = marker.read_text()
        with until_killed(lambda: _overwrite_for_ever(folder)):
            latest = time.monotonic() + 120
            while marker.read_text() == before:
                assert time.monotonic() < latest, "it writes nothing"
                time.sleep(0.0005)  # its first model is there: from now on it writes
            time.sleep(draw.uniform(0.0, 0.13))
        load_sharded_model(model, folder)
        assert (model.weight == model.bias[0]).all()
        written += model.bias[0].item()
    assert written >= 10, "it was killed while it wrote, not before"


def test_a_checkpoint_of_a_recipe_is_such_a_folder(tmp_path: Path) -> None:
    model, fresh = nn.Linear(2, 2), nn.Linear(2, 2)
    saver, place = Saver(tmp_path, 1, asynchronous=False), Place(3, 1, 24)
    saver.save(model, torch.optim.SGD(model.parameters()), Saved(place, {"seed": 1}, None))
    assert saver.wait() == ""
    [folder] = tmp_path.iterdir()
    extra = load_sharded_model(fresh, folder, torch.optim.SGD(fresh.parameters()))
    assert extra["place"] == {"step": 3, "epoch": 1, "consumed": 24}
    assert_equal(fresh.state_dict(), model.state_dict())
