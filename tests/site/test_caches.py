"""Where caches lie: what is set holds; a known site's lie off home; elsewhere nothing moves."""

from __future__ import annotations

import getpass
from pathlib import Path

from rankup.site import config, profile
from rankup.site.caches import caches
from rankup.site.config import Config

HOME = Path("/home/ada")


def _config(tmp_path: Path, text: str) -> Config:
    (tmp_path / "rankup.toml").write_text(text)
    return config.load(tmp_path)


def test_on_a_laptop_every_program_keeps_its_default() -> None:
    found = caches(Config(), profile.load("local"), {}, HOME)
    assert found.root is None
    assert found.variables() == {}
    places = {cache.variable: str(cache.path) for cache in found.entries}
    assert places == {
        "HF_HOME": "/home/ada/.cache/huggingface",
        "TORCH_HOME": "/home/ada/.cache/torch",
        "FASTAI_HOME": "/home/ada/.fastai",
        "TRITON_CACHE_DIR": "/home/ada/.triton/cache",
        "PIP_CACHE_DIR": "/home/ada/.cache/pip",
        "UV_CACHE_DIR": "/home/ada/.cache/uv",
    }
    assert found.own == HOME / ".cache/rankup"


def test_xdg_moves_those_that_follow_it() -> None:
    found = caches(Config(), profile.load("local"), {"XDG_CACHE_HOME": "/fast"}, HOME)
    places = {cache.variable: str(cache.path) for cache in found.entries}
    assert places["HF_HOME"] == "/fast/huggingface"
    assert places["FASTAI_HOME"] == "/home/ada/.fastai"
    assert found.own == Path("/fast/rankup")


def test_a_known_site_has_them_in_the_project() -> None:
    environment = {"PROJECT": "/p/project1/deep", "SCRATCH": "/p/scratch/deep"}
    found = caches(Config(), profile.load("jureca-dc"), environment, HOME)
    root = Path("/p/project1/deep") / getpass.getuser() / "cache"
    assert (found.root, found.own) == (root, root / "rankup")
    assert found.variables()["HF_HOME"] == str(root / "huggingface")
    assert all(cache.said_by == "site" for cache in found.entries)
    del environment["PROJECT"]
    found = caches(Config(), profile.load("jureca-dc"), environment, HOME)
    assert str(found.root).startswith("/p/scratch/deep/")


def test_what_the_environment_says_holds_and_reaches_the_job() -> None:
    environment = {"PROJECT": "/p/x", "HF_HOME": "~/hf", "HF_DATASETS_CACHE": "/d"}
    found = caches(Config(), profile.load("jureca-dc"), environment, HOME)
    [hf] = [cache for cache in found.entries if cache.variable == "HF_HOME"]
    assert (hf.said_by, hf.path) == ("environment", Path.home() / "hf")
    assert found.variables()["HF_DATASETS_CACHE"] == "/d"
    assert found.variables()["TORCH_HOME"].startswith("/p/x/")


def test_rankup_toml_comes_before_the_variable_and_the_site(tmp_path: Path) -> None:
    environment = {"PROJECT": "/p/x", "RANKUP_CACHE": "/v"}
    site = profile.load("jureca-dc")
    assert caches(Config(), site, environment, HOME).root == Path("/v")
    here = _config(tmp_path, '[fetch]\ncache = "caches"')
    assert caches(here, site, environment, HOME).root == tmp_path / "caches"
