"""`rankup fetch SCRIPT` where a download or the script itself goes wrong."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from .. import payloads
from ..payloads import SAMPLES
from ..stage import Stage
from ..web import Web


@pytest.mark.timeout(600)
def test_an_archive_whose_connection_was_cut_comes_with_the_second_fetch(
    stage: Stage, web: Web
) -> None:
    archive = payloads.archive({f"pictures/{i}.raw": bytes(16) for i in range(6)})
    url = web.put("/pictures.tar.gz", archive, cut=100, times=1)
    script = stage.script("archive_dataset.py")
    env = {"PICTURES_MD5": hashlib.md5(archive).hexdigest()}

    cut = stage.fetch(script, env=env)
    assert cut.code == 1, cut.said
    # The script did not notice, and could not unpack what there was.
    assert "EOFError" in cut.err
    assert f"the connection broke before all of {url} had come" in cut.err
    assert not cut.proved
    # Neither the part of an archive nor what was unpacked of it stays.
    assert set(stage.files()) == {"archive_dataset.py"}

    got = stage.fetch(script, env=env)
    assert got.code == 0, got.said
    assert got.proved, got.said
    item = got.item("data/pictures.tar.gz")
    assert (item.source, item.bytes) == (url, len(archive))
    assert len(list((stage.project / "data" / "pictures").iterdir())) == 6


def test_a_script_that_never_trains_is_said_to(stage: Stage, web: Web) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("never_trains.py")
    got = stage.fetch(script)
    assert got.code == 1, got.said
    assert "prepared" in got.out
    assert "never trains" in got.err
    assert not got.proved
    # What it has loaded is recorded all the same.
    assert got.item("train.bin").bytes == 256


def test_a_script_that_crashes_shows_its_own_traceback(stage: Stage, web: Web) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("crashes.py")
    got = stage.fetch(script)
    assert got.code == 1, got.said
    alone = subprocess.run(
        [sys.executable, script.name],
        cwd=stage.project,
        env={**os.environ, **stage.environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert alone.stderr.endswith("IndexError: list index out of range\n")
    assert alone.stderr in got.err
    assert "rankup/login" not in got.err
    # What it has loaded is recorded all the same.
    assert got.item("train.bin").bytes == 256


def test_a_page_that_is_not_there_is_named(stage: Stage, web: Web) -> None:
    script = stage.script("never_trains.py")
    got = stage.fetch(script)
    assert got.code == 1, got.said
    assert "HTTP Error 404: Not Found" in got.err
    assert web.url("/train.bin") in got.err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_download_that_is_cut_is_the_failure_of_the_script(stage: Stage, web: Web) -> None:
    web.put("/train.bin", SAMPLES * 64, cut=5000, times=1)
    script = stage.script("function.py")
    cut = stage.fetch(script, "--data", "data")
    assert cut.code == 1, cut.said
    assert "ChunkedEncodingError" in cut.err
    got = stage.fetch(script, "--data", "data")
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert set(stage.files()) == {"function.py", "data/train.bin"}


@pytest.mark.slow
@pytest.mark.parametrize("hop", [False, True])
@pytest.mark.timeout(600)
def test_weights_that_are_cut_do_not_stay_in_the_cache(stage: Stage, web: Web, hop: bool) -> None:
    web.put("/weights.pt", payloads.weights(8, 2), cut=500, times=1)
    if hop:
        web.put("/mirror/0815", payloads.weights(8, 2), cut=500, times=1)
        web.put("/weights.pt", redirect="/mirror/0815")
    script = stage.script("trainer_class.py")
    cut = stage.fetch(script)
    assert cut.code == 1, cut.said
    assert "the connection broke" in cut.err
    assert not list(stage.home.rglob("*.pt"))
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.proved, got.said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_script_that_trains_with_a_part_of_its_data_is_told_so(stage: Stage, web: Web) -> None:
    url = web.put("/train.bin", SAMPLES, cut=128, times=1)
    script = stage.script("copies.py")
    cut = stage.fetch(script)
    assert cut.code == 1, cut.said
    assert f"the connection broke before all of {url} had come" in cut.err
    assert set(stage.files()) == {"copies.py"}
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.item("train.bin").bytes == 256


@pytest.mark.slow
def test_a_download_anew_of_what_the_script_finds_broken_stays(stage: Stage, web: Web) -> None:
    archive = payloads.archive({f"pictures/{i}.raw": bytes(16) for i in range(6)})
    web.put("/pictures.tar.gz", archive)
    script = stage.script("archive_dataset.py")
    (stage.project / "data").mkdir()
    (stage.project / "data" / "pictures.tar.gz").write_bytes(archive[:100])
    got = stage.fetch(script, env={"PICTURES_MD5": hashlib.md5(archive).hexdigest()})
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert (stage.project / "data" / "pictures.tar.gz").read_bytes() == archive
