"""Nodes of a step that read a source once: sent by `sbcast`, compared on each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.data.stage import staging

from .made import flip, left, packed

# `sbcast --force --jobid=7.3 FILE TO`: TO is below the folder of node 0, and so below the others'.
_SBCAST = """#!/bin/bash
set -e
printf '%s\\n' "$3" >>"$FAKES/sent"
case ${FAKE_SBCAST:-} in
fails) echo "sbcast: error: no space" >&2; exit 1 ;;
esac
for node in "$FAKES"/memory/*; do
    to=${4/memory\\/0/memory\\/${node##*/}}
    cp --remove-destination "$3" "$to"
    if [ "${FAKE_SBCAST:-} $3" = "wrong on ${node##*/} $FAKES/p/train.bin" ]; then
        printf x | dd of="$to" bs=1 seek=60000 conv=notrunc status=none
    fi
    if [ "${FAKE_SBCAST:-}" = "short on ${node##*/}" ]; then : >"$to"; fi
done
"""


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A folder with the memory of three nodes, and a fake `sbcast`."""
    for node in range(3):
        (tmp_path / "memory" / str(node)).mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbcast").write_text(_SBCAST)
    (tmp_path / "bin" / "sbcast").chmod(0o755)
    return tmp_path


@contextmanager
def _node(step: Path, number: int, source: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    variables = {
        **os.environ,
        "PATH": f"{step / 'bin'}:{os.environ['PATH']}",
        "FAKES": str(step),
        "RANKUP_STAGE_DIR": str(step / "memory" / str(number)),
        "RANKUP_RUN_DIR": str(step),
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "3",
        "SLURM_NODEID": str(number),
        "SLURM_STEP_NUM_NODES": "3",
        "SLURM_STEP_NUM_TASKS": "3",
        **more,
    }
    words = ["stage", "--broadcast", "--reserve", "0", str(source)]
    process = subprocess.Popen(
        [sys.executable, "-m", "rankup", *words],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _all(step: Path, source: Path, **more: str) -> list[tuple[int, str]]:
    """The exit code and the output of each node."""
    with (
        _node(step, 0, source, **more) as zero,
        _node(step, 1, source, **more) as one,
        _node(step, 2, source, **more) as two,
    ):
        said = [node.communicate(timeout=120)[0] for node in (zero, one, two)]
        return [(node.returncode, text) for node, text in zip((zero, one, two), said, strict=True)]


def _copies(step: Path) -> list[list[Path]]:
    return [sorted((step / "memory" / str(node)).rglob("data/p")) for node in range(3)]


def test_the_files_are_sent_once_and_compared_on_each_node(step: Path) -> None:
    source = packed(step / "p")
    done = _all(step, source)
    assert [code for code, _ in done] == [0, 0, 0], done
    sent = (step / "sent").read_text().splitlines()
    assert sent == [str(source / "train.bin"), str(source / "val.bin")]
    for (copy,), (_, text) in zip(_copies(step), done, strict=True):
        assert "each sample has the bytes that were packed" in text
        for name in ("train.bin", "val.bin", "index.npz"):
            assert (copy / name).read_bytes() == (source / name).read_bytes()
    assert not list(step.glob(".rankup-*"))
    # Where all have it nobody sends anything, and nobody waits.
    done = _all(step, source)
    assert all("was there already" in text for _, text in done)
    assert len((step / "sent").read_text().splitlines()) == 2


@pytest.mark.parametrize("how", ["fails", "short on 1"])
def test_what_was_not_sent_each_node_reads(step: Path, how: str) -> None:
    source = packed(step / "p")
    done = _all(step, source, FAKE_SBCAST=how)
    assert [code for code, _ in done] == [0, 0, 0], done
    assert [len(found) for found in _copies(step)] == [1, 1, 1]
    if how == "fails":
        assert re.search(r"cannot send .*train.bin .*no space.*: each node reads it", done[0][1])
    assert not list(step.glob(".rankup-*"))


def test_what_came_wrong_is_not_used_on_that_node(step: Path) -> None:
    source = packed(step / "p")
    done = _all(step, source, FAKE_SBCAST="wrong on 2")
    assert [code for code, _ in done] == [0, 0, 2], done
    assert "not those that were packed" in done[2][1]
    assert left(step / "memory" / "2") == []


def test_a_damaged_source_is_refused_on_all_nodes(step: Path) -> None:
    source = packed(step / "p")
    flip(source / "train.bin", 60_000)
    done = _all(step, source)
    assert [code for code, _ in done] == [2, 2, 2], done
    assert [left(step / "memory" / str(node)) for node in range(3)] == [[], [], []]


def test_one_task_on_each_node_is_what_it_takes(tmp_path: Path) -> None:
    environment = {"SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "4"}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "RANKUP_RUN_DIR": str(tmp_path)}
    with (
        pytest.raises(UserError, match=r"4 tasks on 2 nodes.*--ntasks-per-node=1"),
        staging.together(tmp_path / "p", environment, print),
    ):
        pass
    lines: list[str] = []
    with staging.together(tmp_path / "p", {}, lines.append):
        assert "no other nodes here" in lines[0]


def test_a_folder_that_others_could_have_made_is_refused(step: Path) -> None:
    source = packed(step / "p")
    with _node(step, 0, source) as node:
        while not (found := list(step.glob(".rankup-*"))) and node.poll() is None:
            time.sleep(0.002)
    (folder,) = found
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.symlink_to(step / "memory")
    done = _all(step, source)
    assert [code for code, _ in done] == [2, 2, 2], done
    assert "is not a folder of yours alone" in done[0][1]
