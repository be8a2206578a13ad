"""One run of `time_to_loss.py` in a process of one thread: a line of JSON for each point."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import _time_to_loss_ours
import _time_to_loss_peer
from _time_to_loss_clock import Point
from rankup.data.text import open_tokens
from rankup.recipes.options import TOKENS


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    directory = Path(given["text"])
    about = (given["lr"], given["seed"], given["steps"], given["every"])
    if given["who"] == "peer":
        _time_to_loss_peer.train(open_tokens(directory / TOKENS), *about, _tell)
    else:
        place = Path(given["place"])
        _time_to_loss_ours.train(directory, place, given.get("options", {}), *about, _tell)


def _tell(point: Point) -> None:
    print(json.dumps(asdict(point)), flush=True)


if __name__ == "__main__":
    main()
