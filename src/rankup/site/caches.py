"""The folders of downloads: caches of programs that people use, off `$HOME` on a known site.

What the environment says always holds. Else a known site's caches go to one folder per user, in the
project, which is not purged, or in scratch; elsewhere every program keeps its own default.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .config import Config
from .profile import Profile, first_folder

ROOT_VARIABLE = "RANKUP_CACHE"
# Variable -> (whose it is, its folder below the root, its default below $HOME).
_KNOWN = {
    "HF_HOME": ("Hugging Face", "huggingface", ".cache/huggingface"),
    "TORCH_HOME": ("torch.hub", "torch", ".cache/torch"),
    "FASTAI_HOME": ("fastai", "fastai", ".fastai"),
    "TRITON_CACHE_DIR": ("Triton", "triton", ".triton/cache"),
    "PIP_CACHE_DIR": ("pip", "pip", ".cache/pip"),
    "UV_CACHE_DIR": ("uv", "uv", ".cache/uv"),
}
# What follows XDG_CACHE_HOME where nothing else is said.
_XDG = ("HF_HOME", "TORCH_HOME", "PIP_CACHE_DIR", "UV_CACHE_DIR")
# Refine the ones above; a job has to have them where the login node has.
_REFINING = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE")


@dataclass(frozen=True)
class Cache:
    """One program's cache.

    Attributes:
        said_by: the variable is set; rankup would set it (`site`); or the program's default.
    """

    program: str
    variable: str
    path: Path
    said_by: Literal["environment", "site", "default"]


@dataclass(frozen=True)
class Caches:
    """All of them.

    Attributes:
        own: where rankup itself keeps what it fetches by name or URL.
        root: the folder they are moved to; None where each stays at its default.
        entries: one per program.
        refining: further variables that the environment has set.
    """

    own: Path
    root: Path | None
    entries: tuple[Cache, ...]
    refining: Mapping[str, str]

    def variables(self) -> dict[str, str]:
        """Return the variables under which downloads are found again, here and in the job."""
        moved = {c.variable: str(c.path) for c in self.entries if c.said_by != "default"}
        return {**moved, **self.refining}


def caches(
    config: Config, profile: Profile, environment: Mapping[str, str], home: Path | None = None
) -> Caches:
    """The caches of this user on this machine; nothing is made or read.

    The root is `[fetch] cache` of `rankup.toml`, `$RANKUP_CACHE`, the site's project folder, its
    scratch, in this order.
    """
    home = home or Path.home()
    root = _root(config, profile, environment)
    xdg = environment.get("XDG_CACHE_HOME", "")
    entries = []
    for variable, (program, below, usual) in _KNOWN.items():
        said = environment.get(variable, "")
        if said:
            entries.append(Cache(program, variable, Path(said).expanduser(), "environment"))
        elif root is not None:
            entries.append(Cache(program, variable, root / below, "site"))
        else:
            default = home / usual
            if xdg and variable in _XDG:
                default = Path(xdg) / Path(usual).name
            entries.append(Cache(program, variable, default, "default"))
    own = (root or (Path(xdg) if xdg else home / ".cache")) / "rankup"
    refining = {name: environment[name] for name in _REFINING if environment.get(name)}
    return Caches(own, root, tuple(entries), refining)


def _root(config: Config, profile: Profile, environment: Mapping[str, str]) -> Path | None:
    if config.fetch.cache is not None:
        return config.fetch.cache
    said = environment.get(ROOT_VARIABLE, "")
    if said:
        return Path(said).expanduser()
    account = config.job.get("account")
    for templates in (profile.project, profile.scratch):
        folder = first_folder(templates, environment, account)
        if folder is not None:
            return folder / getpass.getuser() / "cache"
    return None
