"""Whether this process runs on a login node."""

from __future__ import annotations

import os

from . import detect


def on_login_node() -> bool:
    """True on a login node of a known site and outside any job: where there is a network."""
    return detect.on_login_node(os.environ, os.uname().nodename)
