"""Where caches lie, and files in scratch that are near their deletion."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankup.base.findings import Finding
from rankup.login.doctor import cache, codes, purge
from rankup.login.doctor.asking import Clock
from rankup.site import profile
from rankup.site.caches import caches
from rankup.site.config import Config
from rankup.site.needs import Needs

JURECA = profile.load("jureca-dc")
GENERIC = profile.load("generic")
HOME = Path("/p/home/jusers/me")
DAY = 86400.0


def judged(
    site: profile.Profile, environment: Mapping[str, str], config: Config | None = None
) -> list[Finding]:
    config = config or Config()
    return cache.check_caches(site, caches(config, site, environment, HOME), HOME)


def test_in_the_project_they_are_fine() -> None:
    [found] = judged(JURECA, {"PROJECT": "/p/project1/x"})
    assert found.level == "ok"
    assert "Hugging Face" in found.message
    assert "rankup sets it" in found.message


def test_home_is_warned_of_with_what_to_set() -> None:
    [found] = judged(JURECA, {})
    assert (found.code, found.level) == (codes.CACHES, "warning")
    assert "~/.cache/huggingface" in found.message
    assert found.todo.startswith("jutil env activate -p PROJECT; or in rankup.toml: [fetch] cache")


def test_a_variable_that_leads_into_home_has_to_go_first() -> None:
    warning, fine = judged(JURECA, {"PROJECT": "/p/project1/x", "HF_HOME": f"{HOME}/hf"})
    assert (warning.level, fine.level) == ("warning", "ok")
    assert "Hugging Face ~/hf (set in your environment)" in warning.message
    assert warning.todo == "unset HF_HOME"


def test_a_cache_that_compute_nodes_do_not_see_is_an_error() -> None:
    found = judged(
        JURECA, {"PROJECT": "/p/project1/x", "HF_HOME": "/tmp/hf", "UV_CACHE_DIR": "/tmp/uv"}
    )
    [error] = [one for one in found if one.level == "error"]
    assert "do not mount Hugging Face /tmp/hf (set in your environment)" in error.message
    assert "uv" not in error.message  # jobs build nothing with it


def test_what_rankup_itself_fetches_counts_too() -> None:
    config = Config(fetch=Needs(cache=Path("/tmp/cache")))
    [error, _] = judged(JURECA, {"PROJECT": "/p/project1/x"}, config)
    assert error.level == "error"
    assert "do not mount Hugging Face, torch.hub, fastai, rankup in /tmp/cache" in error.message


def test_a_link_out_of_home_is_not_home(tmp_path: Path) -> None:
    home, big = tmp_path / "home", tmp_path / "big"
    home.mkdir()
    big.mkdir()
    (home / ".cache").symlink_to(big)
    entries = caches(Config(), GENERIC, {}, home)
    found = cache.check_caches(GENERIC, entries, home)
    [warning] = [one for one in found if one.level == "warning"]
    assert "Hugging Face" not in warning.message
    assert "Triton" in warning.message


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    for number, days in enumerate((1, 40, 80, 95)):
        file = tmp_path / "scratch" / "runs" / f"{number}.pt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (10**9 - days * DAY, 10**9 - 200 * DAY))
    return tmp_path / "scratch"


def test_files_near_their_deletion_are_counted_and_the_first_is_named(scratch: Path) -> None:
    files = purge.sample([scratch / "runs"], scratch, Clock(30), 10**9)
    [found] = purge.check_purge(files, scratch, 90)
    assert (found.code, found.level) == (codes.PURGE, "warning")
    assert found.message.startswith("2 files are unused for over 76 days")
    assert "3.pt may be gone any day (4 files" in found.message


def test_what_lies_elsewhere_is_not_looked_at(scratch: Path) -> None:
    assert purge.sample([scratch.parent / "other"], scratch, Clock(30), 10**9) == []
    assert purge.check_purge([], scratch, 90)[0].level == "ok"


def test_looking_is_bounded_in_time_and_in_number(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / str(number)).touch()
    assert len(purge.sample([tmp_path], tmp_path, Clock(60), 10**9, 50)) == 50
    assert purge.sample([tmp_path], tmp_path, Clock(0.1), 10**9) == []


def test_one_large_folder_does_not_hide_another(tmp_path: Path) -> None:
    for folder, count in (("large", 60), ("small", 1)):
        (tmp_path / folder).mkdir()
        for number in range(count):
            (tmp_path / folder / str(number)).touch()
    found = purge.sample([tmp_path / "large", tmp_path / "small"], tmp_path, Clock(60), 10**9, 50)
    assert tmp_path / "small" / "0" in [one.path for one in found]
