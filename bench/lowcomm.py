"""What the strategies that talk seldom are worth, and what they cost in accuracy; four workers.

Claims:
`lowcomm.async_straggler`, `lowcomm.gossip_straggler`: samples/s with one of four workers three
times slower, against the sum of the workers' speeds alone; 0.8 at least.
`lowcomm.bytes`: bytes that a worker sends per step under `diloco` at H = 50, against those of ddp
over 50; lower is better, 1.0 at most.

Shown beside: the share of ddp's gain over word frequencies that each strategy keeps after equal
tokens of WikiText-2 (`RANKUP_DATA`), and its speed with even workers, a straggler and a slow
network. Sleeps stand for slow computing and sending (`_lowcomm_slow.py`), so that two cores are
enough; idle ones, since a worker that waits for a core is slow as well. Every run is a whole one,
with its start. It runs in the environment it is started from.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import _lowcomm_accuracy
import _lowcomm_speed
from _lowcomm_text import write_wikitext
from common import ROOT, machine, write_text

PARTS = ("accuracy", "speed")
_VALID_WORDS = 10_000


def main() -> None:
    given = _arguments()
    print(f"{machine(())}\n", flush=True)
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if "speed" in given.parts:
            text, options = _bytes_text(directory / "bytes")
            speed = directory / "speed"
            rounds = 1 if given.quick else given.rounds
            lines += _lowcomm_speed.measure(text, speed, options, rounds, given.quick)
            lines.append(_lowcomm_speed.bytes_claim(text, directory / "sent", options))
        if "accuracy" in given.parts:
            text, options = _words(directory / "words")
            place, seeds = directory / "accuracy", 1 if given.quick else given.seeds
            curves = _lowcomm_accuracy.measure(text, place, options, seeds, given.quick)
            if given.curves:
                given.curves.write_text(json.dumps(curves))
    print("\n".join(lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few short runs: some minutes")
    parser.add_argument(
        "--seeds", type=int, default=3, help="of the runs for accuracy that have a bar"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of the claims on speed")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--curves", type=Path, help="write loss curves here, as JSON")
    return parser.parse_args()


def _words(directory: Path) -> tuple[Path, dict[str, Any]]:
    """WikiText-2, and the options that name it."""
    data = Path(os.environ.get("RANKUP_DATA", ROOT.parent / "shared" / "data")) / "wikitext-2"
    if not data.is_dir():
        raise SystemExit(f"bench: no {data}; set RANKUP_DATA to a folder with wikitext-2/")
    return directory, dict(write_wikitext(data, directory, _VALID_WORDS))


def _bytes_text(directory: Path) -> tuple[Path, dict[str, Any]]:
    """Any text, where only speed is looked at."""
    names = ("vocab", "seq_len")
    options = {name: _lowcomm_speed.MODEL[name] for name in names}
    written = write_text(directory, options, 100 * _lowcomm_speed.MODEL["global_batch"])
    return directory, {name: written[name] for name in ("train", "valid", "test")}


if __name__ == "__main__":
    main()
