"""Consent to scripts that somebody else's `rankup.toml` names, which the user gives once.

A group's shared file is a use that is meant; one that somebody has put into a folder above is not.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ...base.errors import UserError
from ...base.files import write_json
from ...base.text import clean
from ...site.config import Config

_REMEMBERED = Path("rankup") / "trusted.json"


def check(config: Config, *, trust: bool, environment: Mapping[str, str]) -> None:
    """Refuse what another user's file would run, where the user has not said that it may.

    Once it may, that is remembered by the file, its owner and a hash of what it would run.

    Args:
        trust: the user says so now.

    Raises:
        UserError: it may not; the message names the file, its owner and the scripts.
    """
    file = config.file
    if file is None or not config.fetch.scripts:
        return
    found = file.stat()
    for_all = bool(found.st_mode & stat.S_IWOTH)
    if found.st_uid in (os.getuid(), 0) and not for_all:
        return
    known, store = {}, _store(environment)
    with suppress(OSError, ValueError):
        known = json.loads(store.read_text(encoding="utf-8"))
    path = str(file.resolve())
    entry = {"owner": found.st_uid, "sha256": _digest(file.parent, config.fetch.scripts)}
    if isinstance(known, dict) and known.get(path) == entry:
        return
    if not trust:
        who = "everybody, who may all write to it" if for_all else _name(found.st_uid)
        raise UserError(
            clean(
                f"{file} belongs to {who}, and would run as you: "
                f"{'; '.join(config.fetch.scripts)}. Nothing was done. Read the file and the "
                "scripts; if they may run: rankup fetch --trust (remembered until they change)"
            )
        )
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(store, {**(known if isinstance(known, dict) else {}), path: entry}, private=True)


def _digest(folder: Path, lines: tuple[str, ...]) -> str:
    """The sha256 of the lines, and of the scripts that they name."""
    whole = hashlib.sha256(json.dumps(lines).encode())
    for line in lines:
        with suppress(OSError, ValueError, IndexError):
            script = folder / shlex.split(line)[0]
            whole.update(hashlib.sha256(script.read_bytes()).digest())
    return whole.hexdigest()


def _store(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(Path.home(), ".config")
    return Path(home) / _REMEMBERED


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"another user (uid {uid})"
