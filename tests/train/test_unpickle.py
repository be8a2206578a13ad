"""Invariant 7: a checkpoint from elsewhere can be wrong or hostile, but it executes nothing."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from rankup.runtime.restore import MetadataUnpickler, fingerprint
from rankup.train.options import TrainOptions
from tests.pool import RankPool

from .runs import train_images

OPTIONS = TrainOptions(24, 8, 4, optimizer="adamw", lr=0.01, checkpoint_every=2)
SHAPE = {"n": 60}
NAME = "model.head.weight"


class Shell:
    """Unpickling it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


@pytest.fixture(scope="module")
def saved(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Copy before use."""
    directory = tmp_path_factory.mktemp("saved")
    ranks.run(1, train_images, directory, OPTIONS, SHAPE)
    return directory


class Target:
    """A run whose newest checkpoint is at hand to be tampered with."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.directory = run / "checkpoints" / "step-00000004"
        self.metadata: Metadata = pickle.loads((self.directory / ".metadata").read_bytes())
        self.trace = run / "executed"
        self.shell = Shell(f"touch {self.trace}")

    def write_metadata(self, metadata: Any) -> None:
        (self.directory / ".metadata").write_bytes(pickle.dumps(metadata))

    def point_to(self, file: str, data: bytes) -> None:
        """Put the named tensor's bytes into a file of one's own."""
        (self.directory / file).write_bytes(data)
        for index, place in self.metadata.storage_data.items():
            if index.fqn == NAME:
                self.metadata.storage_data[index] = replace(
                    place, relative_path=file, offset=0, length=len(data)
                )
        self.write_metadata(self.metadata)

    def sign(self) -> None:
        """Make the marker agree with the files, as whoever tampers with them would."""
        marker = self.directory / "COMPLETE"
        about = json.loads(marker.read_text())
        del about["hash"]  # a marker of before had none
        about["files"] = {
            path.name: fingerprint(path)
            for path in self.directory.iterdir()
            if path.name != marker.name
        }
        marker.write_text(json.dumps(about))


@pytest.fixture
def target(saved: Path, tmp_path: Path) -> Target:
    shutil.copytree(saved, tmp_path / "run")
    # Nothing to fall back to: what is hostile has to be refused.
    target = Target(tmp_path / "run")
    for path in target.directory.parent.iterdir():
        if path != target.directory:
            shutil.rmtree(path)
    return target


def _torch_file(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _hostile_metadata(target: Target) -> None:
    target.write_metadata(target.shell)


def _hostile_inside_metadata(target: Target) -> None:
    target.metadata.planner_data = {"plan": target.shell}
    target.write_metadata(target.metadata)


def _hostile_in_place_of_a_tensor_record(target: Target) -> None:
    target.metadata.state_dict_metadata[NAME] = target.shell
    target.write_metadata(target.metadata)


def _hostile_torch_file(target: Target) -> None:
    target.point_to("__0_0.distcp", _torch_file(target.shell))


def _hostile_beside_a_tensor(target: Target) -> None:
    target.point_to("__9_9.distcp", _torch_file({"t": torch.zeros(4, 6), "x": target.shell}))


def _plain_pickle_for_a_tensor(target: Target) -> None:
    target.point_to("__9_9.distcp", pickle.dumps(target.shell))


def _object_in_place_of_a_tensor(target: Target) -> None:
    """DCP loads what its metadata calls bytes with `weights_only=False`."""
    target.metadata.state_dict_metadata[NAME] = BytesStorageMetadata()
    target.point_to("__9_9.distcp", _torch_file(target.shell))


ATTACKS = [
    _hostile_metadata,
    _hostile_inside_metadata,
    _hostile_in_place_of_a_tensor_record,
    _hostile_torch_file,
    _hostile_beside_a_tensor,
    _plain_pickle_for_a_tensor,
    _object_in_place_of_a_tensor,
]


def _resume(world: Any, directory: Path) -> str:
    """What the resume said; an exception of any kind is a refusal."""
    try:
        report = train_images(world, directory, OPTIONS, SHAPE, True)
    except (Exception, CheckpointException) as error:  # torch's own is none of Exception
        return f"{type(error).__name__}: {error}"
    return report.error


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__.strip("_"))
def test_a_hostile_checkpoint_is_refused_and_executes_nothing(
    ranks: RankPool, target: Target, attack: Callable[[Target], None]
) -> None:
    attack(target)
    target.sign()
    [refusal] = ranks.run(1, _resume, target.run)
    assert refusal
    assert not target.trace.exists()


def test_the_attacks_would_work_on_a_plain_unpickler(target: Target) -> None:
    """Or their refusal would say nothing."""
    pickle.loads(pickle.dumps(target.shell))
    assert target.trace.exists()
    target.trace.unlink()
    torch.load(io.BytesIO(_torch_file(target.shell)), weights_only=False)
    assert target.trace.exists()


@pytest.mark.parametrize(
    "name",
    [
        "os system",
        "posix system",
        "builtins eval",
        "builtins getattr",
        "torch load",
        "torch hub",
        "torch.serialization load",
        "torch.distributed.checkpoint.metadata os",
        "torch.distributed.checkpoint.metadata dataclass",
        "torch.distributed.checkpoint.filesystem pickle",
        "collections namedtuple",
    ],
)
@pytest.mark.parametrize("dotted", ["", ".__class__.__base__"])
def test_the_metadata_unpickler_knows_record_types_alone(name: str, dotted: str) -> None:
    module, attribute = name.split()
    stream = (
        b"\x80\x04" + _short(module) + _short(attribute + dotted) + b"\x93."
    )  # PROTO 4, two strings, STACK_GLOBAL, STOP
    with pytest.raises(pickle.UnpicklingError, match="refers to"):
        MetadataUnpickler(io.BytesIO(stream)).load()


def test_the_metadata_may_not_name_bytes() -> None:
    with pytest.raises(pickle.UnpicklingError, match="BytesStorageMetadata"):
        MetadataUnpickler(io.BytesIO(pickle.dumps(BytesStorageMetadata()))).load()


def _short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def test_an_untouched_checkpoint_loads(ranks: RankPool, target: Target) -> None:
    target.write_metadata(target.metadata)
    target.sign()
    assert ranks.run(1, _resume, target.run) == [""]


def test_the_model_of_a_run_loads_with_weights_only(saved: Path) -> None:
    assert torch.load(saved / "model-final.pt", weights_only=True)
