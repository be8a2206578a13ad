"""Watches a Python process that a watched script has started; Python imports it at its start.

The process may be of any Python, so nothing newer than the syntax of Python 3.0 stands here.
"""

import os
import sys

_NAME = "rankup_of_sandbox"


def _folder() -> str:
    return os.path.dirname(os.path.realpath(__file__))


def _hand_on() -> None:
    """Import the `sitecustomize` that would have been found without us."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    sys.path[:] = [path for path in sys.path if os.path.realpath(path or ".") != _folder()]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _watch() -> None:
    """Load the watch by its path, under names of its own: this Python may have another rankup.

    The packages above it are not run, only what they hold is found.
    """
    from importlib import import_module
    from types import ModuleType

    folder = _folder()
    above = {"": 3, ".sandbox": 2}
    for below, steps in above.items():
        module = ModuleType(_NAME + below)
        module.__path__ = [os.path.normpath(os.path.join(folder, *[os.pardir] * steps))]
        sys.modules[_NAME + below] = module
    import_module(_NAME + ".sandbox.inside.main").install_in_child()


if os.environ.get("RANKUP_SANDBOX") and sys.version_info >= (3, 10):
    _watch()
_hand_on()
