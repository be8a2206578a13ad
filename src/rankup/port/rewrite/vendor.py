"""`--vendor`: the runtime beside a script, so that it runs where rankup is not installed."""

from __future__ import annotations

from pathlib import Path

from ... import __version__
from ...base.files import write_atomic
from ...script.names import RUNTIME

_ROOM = Path(__file__).resolve().parents[2] / "runtime"
_NAMES = '''"""The runtime of rankup {version}, copied by `rankup port --vendor`; needs torch."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {{
{names}
}}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    value = getattr(importlib.import_module(f".{{_HOME[name]}}", __name__), name)
    globals()[name] = value
    return value
'''


def copy_runtime(folder: Path) -> Path:
    """Copy the runtime into `folder`, each file old or new, the names last; where it went.

    Raises:
        OSError: a file could not be written.
    """
    target = folder / RUNTIME
    for source in sorted(_ROOM.rglob("*.py")):
        # In a room of its own here as well: the module `shard` must not stand for the function.
        copy = target / _ROOM.name / source.relative_to(_ROOM)
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(copy, source.read_bytes())
    write_atomic(target / "__init__.py", _NAMES.format(version=__version__, names=_names()))
    return target


def _names() -> str:
    from ... import _HOME

    own = {n: home for n, home in _HOME.items() if home.startswith(f"{_ROOM.name}.")}
    return "\n".join(f'    "{name}": "{home}",' for name, home in own.items())
