"""The user's own code in a traceback."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

# A frame as a traceback or faulthandler prints it.
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+),? in (\S+)')
_NOT_THE_USERS = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<|/rankup/login/fetch/")


def users_frames(text: str) -> list[str]:
    """The frames of the user's own code in a traceback: "train.py:12 in main", in its order."""
    return [
        f"{PurePosixPath(file).name}:{line}" + ("" if name == "<module>" else f" in {name}")
        for file, line, name in _FRAME.findall(text)
        if not _NOT_THE_USERS.search(file)
    ]
