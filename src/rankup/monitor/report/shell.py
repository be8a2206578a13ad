"""A page as one file that needs no network: template, style, scripts and data in one text.

Its Content-Security-Policy lets run what is in it, by hash, and nothing else, and lets it load and
send nothing: whatever a name in a recording holds, it stays text.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ...base.text import clean
from .data import embedded

_CODE = re.compile(r"`([^`]+)`")


def render(
    template: str, scripts: tuple[str, ...], document: Any, arrays: str, **context: Any
) -> str:
    """The text of a page.

    Args:
        template: its name in `page/`.
        scripts: names in `page/` that become one script, in this order.
        document: becomes JSON for them; `arrays`: the text of packed arrays for them.
        context: what the template shows; texts are escaped there.
    """
    script = "\n".join(['"use strict";', *map(_asset, scripts)])
    plotly = _plotly()
    hashes = " ".join(f"'sha256-{_digest(one)}'" for one in (plotly, script))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template(template)
        .render(
            policy=policy,
            style=Markup(_asset("report.css")),  # noqa: S704 - our own files
            plotly=Markup(plotly),  # noqa: S704
            script=Markup(script),  # noqa: S704
            document=Markup(embedded(document)),  # noqa: S704 - escaped for this place
            arrays=arrays,
            **context,
        )
    )


def with_code(text: str) -> Markup:
    """HTML of a text in which `…` marks code; all of it escaped."""
    pieces = _CODE.split(clean(text))
    html = [
        Markup("<code>{}</code>").format(piece) if at % 2 else escape(piece)
        for at, piece in enumerate(pieces)
    ]
    return Markup("").join(html)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rankup.monitor.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["clean"] = lambda value: clean(str(value))
    environment.filters["with_code"] = with_code
    return environment


def _asset(name: str) -> str:
    return resources.files("rankup.monitor.report").joinpath(f"page/{name}").read_text("utf-8")


def _plotly() -> str:
    """Plotly's JavaScript out of its Python package, without importing that."""
    spec = find_spec("plotly")
    assert spec is not None, "rankup depends on it"
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path.read_bytes().decode()


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
