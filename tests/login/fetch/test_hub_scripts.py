"""`rankup fetch SCRIPT` on scripts that load from the Hugging Face hub, imitated on loopback."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ..hub_server import Hub
from ..stage import Stage


def test_model_and_data_set_of_a_hand_written_loop(stage: Stage, hub: Hub) -> None:
    script = stage.script("hub_loop.py")
    got = stage.fetch(script, env=hub.environment)
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert got.record is not None

    model = got.item("models--org--tiny-model")
    assert model.revision == hub.commit("model", "org/tiny-model")
    assert model.bytes > 20_000
    assert "org/tiny-model" in model.name
    assert [i for i in got.record.items if "org--tiny" in i.path and "datasets--" in i.path]
    assert all(Path(item.path).exists() for item in got.record.items)

    assert got.record.offline["HF_HUB_OFFLINE"] == "1"
    assert got.record.offline["HF_DATASETS_OFFLINE"] == "1"
    assert "not-for-logs" not in got.said + repr(got.record)
    assert not (stage.project / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_second_fetch_records_what_was_there_already(stage: Stage, hub: Hub) -> None:
    script = stage.script("hub_loop.py")
    first = stage.fetch(script, env=hub.environment)
    hub.web.forget()
    second = stage.fetch(script, env=hub.environment)
    assert (first.code, second.code) == (0, 0), first.said + second.said
    assert not [asked for asked in hub.web.requests() if asked.path.startswith("/cdn/")]
    assert second.item("models--org--tiny-model") == first.item("models--org--tiny-model")


@pytest.mark.slow
def test_two_projects_share_the_cache_that_both_fill_where_the_environment_moves_it(
    stage: Stage, hub: Hub, tmp_path: Path
) -> None:
    moved = {**hub.environment, "RANKUP_CACHE": str(tmp_path / "shared")}
    other = replace(stage, project=tmp_path / "other")
    other.project.mkdir()
    scripts = [(one, one.script("hub_loop.py")) for one in (stage, other)]
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(one.fetch, script, env=moved) for one, script in scripts]
    for future in both:
        got = future.result()
        assert got.code == 0, got.said
        assert got.proved, got.said
        assert got.record is not None
        assert got.record.variables["HF_HOME"] == str(tmp_path / "shared" / "huggingface")
        model = Path(got.item("models--org--tiny-model").path)
        assert model.is_relative_to(tmp_path / "shared")
    assert not list(stage.home.rglob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_weight_file_that_is_cut_is_resumed(stage: Stage, hub: Hub) -> None:
    weights = hub.file("model", "org/tiny-model", "model.safetensors")
    # More often than huggingface_hub tries again.
    hub.web.put(hub.large(weights), weights, cut=4000, times=50)
    script = stage.script("hub_loop.py")
    got = stage.fetch(script, env=hub.environment, timeout=240)
    assert got.code in (0, 1), got.said
    hub.web.put(hub.large(weights), weights)
    got = stage.fetch(script, env=hub.environment)
    assert got.code == 0, got.said
    assert got.proved, got.said


@pytest.mark.slow
def test_a_model_that_does_not_exist_is_the_failure_of_the_script(stage: Stage, hub: Hub) -> None:
    script = stage.script("hub_loop.py")
    script.write_text(script.read_text().replace("org/tiny-model", "org/nothing"))
    got = stage.fetch(script, env=hub.environment)
    assert got.code == 1, got.said
    assert "org/nothing" in got.err
    assert "hub_loop.py" in got.err
