"""Questions about the Python that jobs get: its environment, and the torch in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ...base.findings import Finding
from ..env import staleness
from ..env.texts import REQUIREMENT
from ..question import error, ok, question, warning
from .facts import Facts

# Fully sharded training (FSDP2) as rankup uses it.
_OLDEST = Version("2.7")
_RANKUP = Version("2.8")
_PLACE = "environment"


@question("RK518", "Python and its environment", "Python")
def python(facts: Facts) -> Iterator[Finding]:
    """The Python that runs rankup, which is the one that jobs get: what doctor says of packages is
    said of it. Another environment may be active: what you install there is not in a job. Packages
    are built for this node's processors, and do not start on others: on a Grace CPU (aarch64)
    nothing does that was made on an x86_64 machine. The folder `env` of the project, or the
    environment that is active, was made, is active, and is as its files ask; an older one lacks what
    you have added. Also what `[job] environment` or `container` gives jobs instead.

    ```text
    WARN  Python       3.12.1, /home/me/.local/bin/python (virtual environment); active is /p/project1/x/env/venv, so jobs do not get what you see there [RK518]
    ERROR Python       this node is x86_64, compute nodes of JUPITER are aarch64: this environment does not start there [RK518]
    WARN  environment  /p/project1/x/env is there and not active: what is said here of packages is of /usr [RK518]
          -> the line that `rankup env` prints activates it; then ask doctor again
    ```

    Install rankup into the environment that you train in (`rankup env create` does), on a node like
    the compute nodes, and `source env/activate.sh`; after a change of its files
    `rankup env create`.
    """  # noqa: E501
    this = facts.python
    kind = "virtual environment" if this.venv else "no virtual environment"
    message = f"{this.version}, {this.executable} ({kind})"
    if this.active is None or _same(this.active, this.prefix):
        yield ok(message)
    else:
        yield warning(
            f"{message}; active is {this.active}, so jobs do not get what you see there",
            "install rankup into the active environment, or leave that one (`deactivate`)",
        )
    here, there = facts.architecture, facts.profile.architecture
    if there and here != there:
        yield error(
            f"this node is {here}, compute nodes of {facts.profile.title} are {there}: this "
            "environment does not start there",
            f"make the environment on a node that is {there}: a login node of that machine, or a "
            "job",
        )
    yield from _own_environment(facts)
    for key in ("container", "environment"):
        value = facts.config.job.get(key)
        if value is None:
            continue
        if "://" in value or os.path.exists(value):
            message = f"jobs get {value} ([job] {key}); packages here are those of this Python"
            yield ok(message, place="rankup.toml")
        else:
            message = f"[job] {key} = {value}: there is no such file"
            yield error(message, "name one", "rankup.toml")


@question("RK520", "one torch is there, and new enough", "torch")
def torch(facts: Facts) -> Iterator[Finding]:
    """The torch that would be imported, found without importing it. Older than 2.7 is an error,
    older than 2.8 a warning, and so is a second one on Python's path.

    Modules of a site often bring a torch of two years ago. FSDP2 (`fully_shard`), which trains
    large models, needs 2.7; rankup's recipes want 2.8. Two of them, the module's and the
    environment's, are the most frequent trouble: Python takes the first, and torchvision may come
    from beside the other ("operator torchvision::nms does not exist", an undefined symbol).

    ```text
    ERROR torch  2.1.2 in /p/software/.../site-packages is too old for FSDP2, which wants 2.7 [RK520]
          -> remove the module (PyTorch in modules.sh), and ask for a newer one: torch>=2.8 in requirements.txt
    WARN  torch  two of them: 2.8.0 in /x/env/venv/lib/python3.12/site-packages is taken, behind it 2.1.2 in /p/software/.../site-packages [RK520]
    ```

    Take `PyTorch` and `torchvision` out of `modules.sh`, write `torch>=2.8` into
    `requirements.txt`, and make the environment anew: `rankup env create`.
    """  # noqa: E501
    if not facts.torches:
        todo = "`rankup env create`; or load the site's PyTorch; or pip install 'rankup[train]'"
        yield warning("this Python has none", todo)
        return
    first = facts.torches[0]
    message = f"{first.version} in {first.folder}"
    try:
        version = Version(first.version)
    except InvalidVersion:
        todo = f"install it anew: pip install --force-reinstall '{REQUIREMENT}'"
        yield error(f"{first.folder}: torch/version.py is damaged", todo)
        return
    if version < _OLDEST:
        yield error(
            f"{message} is too old for FSDP2, which wants 2.7",
            "remove the module (PyTorch in modules.sh), and ask for a newer one: "
            f"{REQUIREMENT} in requirements.txt",
        )
    elif version < _RANKUP:
        todo = f"pip install '{REQUIREMENT}'"
        yield warning(f"{message}; recipes of rankup want 2.8 or newer", todo)
    else:
        yield ok(message)
    if others := facts.torches[1:]:
        behind = ", ".join(f"{one.version} in {one.folder}" for one in others)
        yield warning(
            f"two of them: {first.version} in {first.folder} is taken, behind it {behind}",
            "have one: remove the module that brings torch (modules.sh, PYTHONPATH), or take torch "
            "out of requirements.txt and make the environment anew",
        )


def _own_environment(facts: Facts) -> Iterator[Finding]:
    # An environment may lie elsewhere, under another name: the one that is active is known by its
    # files.
    own = facts.python.prefix.parent
    active = facts.python.venv and (own / "activate.sh").is_file()
    folder = own if active else facts.project / "env"
    create = shlex.join(["rankup", "env", "create", str(folder)])
    if not (folder / "activate.sh").is_file():
        return
    if not (folder / "venv" / "bin" / "python").exists():
        yield warning(f"{folder} has its files, and no venv", create, _PLACE)
    elif why := staleness(folder):
        yield warning(why, create, _PLACE)
    elif _same(folder / "venv", facts.python.prefix):
        yield ok(f"{folder} is active", place=_PLACE)
    else:
        yield warning(
            f"{folder} is there and not active: what is said here of packages is of "
            f"{facts.python.prefix}",
            "the line that `rankup env` prints activates it; then ask doctor again",
            _PLACE,
        )


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
