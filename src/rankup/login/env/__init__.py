"""`rankup env`: an environment from modules.sh and requirements.txt, usable without rankup.

The work is done by `setup.sh`, a file of the environment itself; here it is written and started.
"""

from .check import check
from .making import create, lock
from .state import line_to_source, staleness

__all__ = ["check", "create", "line_to_source", "lock", "staleness"]
