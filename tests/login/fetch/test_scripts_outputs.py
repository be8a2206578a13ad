"""`rankup fetch SCRIPT` leaves the outputs of a script as they were."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ..payloads import SAMPLES
from ..stage import Stage
from ..web import Web


def test_what_a_flat_script_loads_comes_and_its_outputs_stay_as_they_were(
    stage: Stage, web: Web
) -> None:
    url = web.put("/train.bin", SAMPLES)
    script = stage.script("flat.py")
    before = {"flat.py": script.read_bytes(), "results.csv": b"of last week\n"}
    before |= {"train.log": b"line 1\nline 2", "model.pt": b"trained for days"}
    for name, content in before.items():
        (stage.project / name).write_bytes(content)

    got = stage.fetch(script)

    assert got.code == 0, got.said
    assert got.proved, got.said
    item = got.item("data/train.bin")
    assert (item.source, item.bytes) == (url, 256)
    assert stage.files() == {**before, "data/train.bin": SAMPLES}
    for shown in ("train.bin", url, "256"):
        assert shown in got.said
    # The proof asked for nothing.
    assert len(web.requests("/train.bin")) == 1


@pytest.mark.slow
def test_new_outputs_of_a_script_that_is_stopped_are_not_left_half_written(
    stage: Stage, web: Web
) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("flat.py")
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert set(stage.files()) == {"flat.py", "data/train.bin"}


def test_a_script_that_waits_for_ever_is_stopped_in_time(stage: Stage, web: Web) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("sleeps.py")
    (stage.project / "results.csv").write_bytes(b"of last week\n")
    got = stage.fetch(script, options=("--time", "10s"))
    assert got.code == 1, got.said
    assert "stopped after 10 s" in got.err
    assert f"sleeps.py:{len(script.read_text().splitlines())}" in got.err
    assert not got.proved
    assert (stage.project / "results.csv").read_bytes() == b"of last week\n"
    assert set(stage.files()) == {"sleeps.py", "results.csv", "train.bin"}


@pytest.mark.slow
def test_two_fetches_at_once_do_not_take_each_others_files_for_the_users(
    stage: Stage, web: Web
) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("flat.py")
    # Both have their outputs open for longer than what they do before.
    text = script.read_text().replace("\nlog = ", "\n__import__('time').sleep(2)\nlog = ")
    script.write_text(text)
    before = {"flat.py": text.encode(), "results.csv": b"of last week\n", "train.log": b"line 1\n"}
    for name, content in before.items():
        (stage.project / name).write_bytes(content)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(stage.fetch, script) for _ in range(2)]
    for future in both:
        assert future.result().code == 0, future.result().said
    assert stage.files() == {**before, "data/train.bin": SAMPLES}


@pytest.mark.slow
def test_what_a_script_renames_or_replaces_is_put_back(stage: Stage, web: Web) -> None:
    urls = [web.put(f"/{i}.bin", bytes([i] * 8), per_second=40) for i in range(6)]
    script = stage.script("replaces.py")
    outputs = ("last.pt", "train.log", "train.log.1", "train.log.2", "loss.png", "loss-before.png")
    before = {name: f"{name} of last week".encode() for name in outputs}
    for name, content in before.items():
        (stage.project / name).write_bytes(content)
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.proved, got.said
    # Threads that download at once do not mix up what came from where.
    assert [got.item(f"/{i}.bin").source for i in range(6)] == urls
    came = {f"{i}.bin": bytes([i] * 8) for i in range(6)}
    assert stage.files() == {"replaces.py": script.read_bytes(), **before, **came}
