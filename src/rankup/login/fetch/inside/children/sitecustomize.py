"""Watches a Python process that a fetched script has started; Python imports it at its start.

The process may be of any Python, so nothing newer than the syntax of Python 3.0 stands here.
"""

import os
import sys

_NAME = "rankup_fetch_inside"


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
    from importlib.util import module_from_spec, spec_from_file_location

    package = os.path.dirname(_folder())
    spec = spec_from_file_location(
        _NAME, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        raise ImportError(package)
    module = module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    from rankup_fetch_inside.child import install  # type: ignore[import-not-found]

    install()


if os.environ.get("RANKUP_FETCH") and sys.version_info >= (3, 10):
    _watch()
_hand_on()
