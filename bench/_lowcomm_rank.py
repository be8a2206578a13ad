"""One rank of `lowcomm.py`: a run of the language model from its first step to its last.

The spec on its command line names the options, the folder, and what is slow. It leaves what every
run leaves, and `stamps-RANK.json`: when each micro-batch was done, and what had been sent by then.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from _lowcomm_late import all_late
from _lowcomm_slow import SlowTask, slow_network
from _strategies_rank import sent
from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.runtime.world import setup
from rankup.train.gossip.loop import train as train_by_gossip
from rankup.train.loop import train


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # no rank outlives the bench, however that ends
    spec: dict[str, Any] = json.loads(sys.argv[1])
    if os.getppid() != spec["parent"]:  # it has ended while torch was imported
        return
    torch.set_num_threads(1)
    world = setup()
    number = int(os.environ.get("RANKUP_WORKER", world.rank))
    stamps: list[tuple[float, int]] = []

    def done() -> None:
        stamps.append((time.time(), sent() if spec["count_bytes"] else 0))

    options = LanguageModelOptions(**spec["options"])
    seconds = spec["seconds"][number]
    task = SlowTask(options, Path(spec["text"]) / TOKENS, seconds, done)
    if spec["bandwidth"]:
        slow_network(spec["bandwidth"], world.rank, world.world_size)
    if spec["late"]:
        all_late(spec["late"])
    directory = Path(spec["directory"])
    loop = train_by_gossip if options.strategy == "gossip" else train
    loop(task, options, world, directory)
    (directory / f"stamps-{number}.json").write_text(json.dumps(stamps))
    sys.stdout.flush()
    os._exit(0)  # threads of a process group may still hold connections


if __name__ == "__main__":
    main()
