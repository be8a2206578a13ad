"""`rankup fetch SCRIPT` on scripts that load from a web, from the command to the record."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .. import payloads
from ..payloads import SAMPLES
from ..stage import Stage
from ..web import Web


def test_a_script_that_hard_codes_its_gpu_starts_without_one(stage: Stage, web: Web) -> None:
    url = web.put("/weights.pt", payloads.weights(8, 2))
    script = stage.script("trainer_class.py")
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.proved, got.said
    item = got.item("checkpoints/weights.pt")
    assert item.source == url
    assert Path(item.path).is_relative_to(stage.home / ".cache" / "torch")
    # torch.hub says the whole URL; the rest is ours.
    said = "".join(line for line in got.said.splitlines() if not line.startswith("Downloading"))
    assert "not-for-logs" not in said + repr(got.record)


@pytest.mark.slow
def test_every_sample_comes_of_a_data_set_that_loads_them_when_they_are_drawn(
    stage: Stage, web: Web
) -> None:
    for i in range(12):
        web.put(f"/{i}.bin", bytes([i] * 8))
    script = stage.script("lazy.py")
    got = stage.fetch(script, "2")
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert {path.name for path in (stage.project / "data").iterdir()} == {
        f"{i}.bin" for i in range(12)
    }
    assert all(len(web.requests(f"/{i}.bin")) == 1 for i in range(12))


@pytest.mark.slow
def test_a_script_that_refuses_to_start_without_a_gpu_is_told_of_one(
    stage: Stage, web: Web
) -> None:
    web.put("/train.bin", SAMPLES)
    script = stage.script("needs_gpu.py")
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert "once more, telling it that there is a GPU" in got.err
    assert "Traceback" not in got.said, "the second start has shown that it was no error"
    got.item("train.bin")


@pytest.mark.slow
def test_fastai_trains_from_its_own_cache(stage: Stage, web: Web) -> None:
    names = [f"oxford-iiit-pet/images/{'Cat' if i % 2 else 'dog'}_{i}.jpg" for i in range(10)]
    url = web.put("/oxford-iiit-pet.tgz", payloads.archive(dict.fromkeys(names, bytes(16))))
    weights = web.put("/resnet18-f37072fd.pth", payloads.resnet())
    script = stage.script("fastai_shaped.py")
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert got.item("archive/oxford-iiit-pet.tgz").source == url
    assert got.item("checkpoints/resnet18-f37072fd.pth").source == weights
    assert not (stage.project / "export.pkl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_function_with_arguments_and_workers(stage: Stage, web: Web, start: str) -> None:
    url = web.put("/train.bin", SAMPLES)
    script = stage.script("function.py")
    arguments = ["--data", str(stage.project / "far" / "away")]
    arguments += ["--workers", "2", "--start", start]
    got = stage.fetch(script, *arguments)
    assert got.code == 0, got.said
    assert got.proved, got.said
    item = got.item("far/away/train.bin")
    assert (item.source, item.bytes) == (url, 256)
    assert set(stage.files()) == {"function.py", "far/away/train.bin"}


@pytest.mark.slow
def test_a_script_imports_what_lies_beside_it_and_gets_its_arguments(
    stage: Stage, web: Web
) -> None:
    for name in ("train.bin", "test.bin"):
        web.put(f"/{name}", SAMPLES)
    arguments = ("--epochs", "2", "a b", "*", "$HOME")
    got = stage.fetch(stage.script("splits.py"), *arguments)
    assert got.code == 0, got.said
    assert got.proved, got.said
    for name in ("train.bin", "test.bin"):
        assert got.item(f"own/files/{name}").source == web.url(f"/{name}")


@pytest.mark.slow
def test_a_distributed_script_is_a_world_of_one(stage: Stage, web: Web) -> None:
    web.put("/weights.pt", payloads.weights(8, 2))
    got = stage.fetch(stage.script("distributed.py"))
    assert got.code == 0, got.said
    assert got.proved, got.said
    got.item("checkpoints/weights.pt")


@pytest.mark.slow
def test_samples_come_without_workers_too(stage: Stage, web: Web) -> None:
    for i in range(12):
        web.put(f"/{i}.bin", bytes([i] * 8))
    got = stage.fetch(stage.script("lazy.py"), "0")
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert len(list((stage.project / "data").iterdir())) == 12


@pytest.mark.slow
def test_a_redirect_to_another_host_is_followed(stage: Stage, web: Web) -> None:
    web.put("/mirror/train.bin", SAMPLES)
    url = web.put("/train.bin", redirect=web.url("/mirror/train.bin", host="localhost"))
    got = stage.fetch(stage.script("function.py"), "--data", "data")
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert got.item("data/train.bin").source in (url, web.url("/mirror/train.bin", "localhost"))


@pytest.mark.slow
def test_a_slow_server_is_waited_for(stage: Stage, web: Web) -> None:
    web.put("/train.bin", SAMPLES * 64, per_second=4096)
    got = stage.fetch(stage.script("function.py"), "--data", "data")
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert got.item("data/train.bin").bytes == 256 * 64


@pytest.mark.slow
def test_two_fetches_of_a_script_at_once_both_succeed(stage: Stage, web: Web) -> None:
    web.put("/weights.pt", payloads.weights(8, 2), per_second=4000)
    script = stage.script("trainer_class.py")
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(stage.fetch, script) for _ in range(2)]
    for future in both:
        got = future.result()
        assert got.code == 0, got.said
        assert got.proved, got.said
        got.item("checkpoints/weights.pt")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_fetch_finds_all_there_and_records_it(stage: Stage, web: Web) -> None:
    web.put("/weights.pt", payloads.weights(8, 2))
    script = stage.script("trainer_class.py")
    first = stage.fetch(script)
    second = stage.fetch(script)
    assert (first.code, second.code) == (0, 0), second.said
    assert second.proved, second.said
    assert len(web.requests("/weights.pt", "GET")) == 1
    assert second.item("checkpoints/weights.pt").bytes == first.item("weights.pt").bytes
