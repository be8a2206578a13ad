"""The proof of `rankup fetch SCRIPT`: a start without a network says what would be missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..hub_server import Hub
from ..payloads import SAMPLES
from ..stage import Stage
from ..web import Web

ONLY_PROOF = ("--only-proof",)


@pytest.mark.timeout(600)
def test_a_file_that_was_removed_is_named_with_the_call_that_wanted_it(
    stage: Stage, web: Web
) -> None:
    url = web.put("/train.bin", SAMPLES)
    script = stage.script("function.py")
    arguments = ("--data", "data")
    assert stage.fetch(script, *arguments).code == 0

    (stage.project / "data" / "train.bin").unlink()
    web.forget()
    failed = stage.fetch(script, *arguments, options=ONLY_PROOF)
    assert failed.code == 1, failed.said
    assert failed.record is not None
    assert failed.record.proof == "failed"
    line = _line(script, "with requests.get(")
    for where in (url, f"function.py:{line}", "download"):
        assert where in failed.said, failed.said
    assert url in failed.record.note
    # The server was there to be asked, and was not.
    assert web.requests() == []
    assert not (stage.project / "data" / "train.bin").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_proof_alone_asks_for_nothing_and_keeps_what_is_known(stage: Stage, web: Web) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("function.py")
    first = stage.fetch(script, "--data", "data")
    web.forget()
    again = stage.fetch(script, "--data", "data", options=ONLY_PROOF)
    assert again.code == 0, again.said
    assert again.proved, again.said
    assert first.record is not None
    assert again.record is not None
    assert again.record.items == first.record.items
    assert web.requests() == []


@pytest.mark.slow
def test_a_script_that_keeps_nothing_cannot_be_proved(stage: Stage, web: Web) -> None:
    url = web.put("/train.bin", SAMPLES)
    script = stage.script("streaming.py")
    got = stage.fetch(script)
    assert got.code == 1, got.said
    assert got.record is not None
    assert got.record.proof == "failed"
    assert url in got.said
    assert f"streaming.py:{_line(script, 'urlopen')}" in got.said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_was_removed_from_the_hubs_cache_is_named(stage: Stage, hub: Hub) -> None:
    script = stage.script("hub_loop.py")
    got = stage.fetch(script, env=hub.environment)
    assert got.code == 0, got.said
    hub.web.forget()

    cache = stage.home / ".cache" / "huggingface"
    away = stage.home / "away"
    data = next((cache / "hub").glob("datasets--*"))
    (away / "hub").mkdir(parents=True)
    for folder in (cache / "datasets", data):
        folder.rename(away / folder.relative_to(cache))
    failed = stage.fetch(script, options=ONLY_PROOF, env=hub.environment)
    assert failed.code == 1, failed.said
    for said in ("org/tiny", f"hub_loop.py:{_line(script, 'data = load_dataset')}"):
        assert said in failed.said, failed.said

    for folder in (cache / "datasets", data):
        shutil.rmtree(folder, ignore_errors=True)
        (away / folder.relative_to(cache)).rename(folder)
    model = Path(got.item("models--org--tiny-model").path)
    weights = next(model.rglob("*.safetensors"))
    weights.resolve().unlink()
    weights.unlink()

    failed = stage.fetch(script, options=ONLY_PROOF, env=hub.environment)

    assert failed.code == 1, failed.said
    assert failed.record is not None
    assert failed.record.proof == "failed"
    line = _line(script, "model = AutoModelForSequenceClassification")
    for said in ("org/tiny-model", f"hub_loop.py:{line}"):
        assert said in failed.said, failed.said
    assert hub.web.requests() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sample_that_was_removed_is_named_though_a_worker_wanted_it(
    stage: Stage, web: Web
) -> None:
    for i in range(12):
        web.put(f"/{i}.bin", bytes([i] * 8))
    script = stage.script("lazy.py")
    assert stage.fetch(script, "2").code == 0
    shutil.rmtree(stage.project / "data")
    failed = stage.fetch(script, "2", options=ONLY_PROOF)
    assert failed.code == 1, failed.said
    assert f"lazy.py:{_line(script, 'urlretrieve')}" in failed.said, failed.said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_proof_that_fails_leaves_the_outputs_as_they_were(stage: Stage, web: Web) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("flat.py")
    assert stage.fetch(script).code == 0
    (stage.project / "results.csv").write_text("of last week\n")
    (stage.project / "data" / "train.bin").unlink()
    before = stage.files()
    failed = stage.fetch(script, options=ONLY_PROOF)
    assert failed.code == 1, failed.said
    assert stage.files() == before


def test_a_proof_without_a_fetch_before_says_what_is_missing(stage: Stage, web: Web) -> None:
    url = web.put("/train.bin", SAMPLES)
    script = stage.script("never_trains.py")
    failed = stage.fetch(script, options=ONLY_PROOF)
    assert failed.code == 1, failed.said
    assert url in failed.said
    assert f"never_trains.py:{_line(script, 'urlretrieve')}" in failed.said
    assert web.requests() == []


def _line(script: Path, text: str) -> int:
    """The number of the line in a script that has the text."""
    lines = script.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)
