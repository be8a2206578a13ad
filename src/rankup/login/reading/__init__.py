"""Reading a script without running it: what it imports, and what it fetches.

Nothing is executed or imported; the standard library's `ast` is all that looks at the script.
"""

from __future__ import annotations

from .found import Download, Import, Reading
from .show import show_downloads
from .whole import imports, read

__all__ = ["Download", "Import", "Reading", "imports", "read", "show_downloads"]
