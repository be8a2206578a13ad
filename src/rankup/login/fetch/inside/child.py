"""In a Python process that the script has started: the same watch as in the script's own."""

from __future__ import annotations

import os
import sys
import warnings

from .install import install as install_all
from .spec import load


def install() -> None:
    """Called by `sitecustomize`.

    Where that is not possible the process does not start: it would be neither watched nor kept from
    the network.
    """
    if any("multiprocessing.resource_tracker" in word for word in sys.orig_argv):
        # It cleans up after those that we end, and would complain of them to the user.
        warnings.filterwarnings("ignore", "resource_tracker: ")
        return
    try:
        spec = load()
        install_all(spec)
    except Exception as error:
        os.write(2, f"rankup fetch cannot watch this process: {error!r}\n".encode())
        os._exit(70)
