"""Photos to batches with 2 workers: our `Loader` against the course's, DALI's, and bare decoding.

Claims, each in samples/s: `loader.decode`, the Loader over HDF5 against a loop of the same
transform in two processes that hand nothing on; `loader.dali`, against DALI on the CPU with 2
threads, the better of its own reader of files and of one that takes bytes and order from rankup;
`loader.course`, the whole photo resized by us against the course's HDF5 reader and transform
(Pillow, float at full size, antialiased resize) in torch's DataLoader with 2 workers;
`loader.recipe`, the batches of the recipe `image-classification` as its loop gets them, against the
Loader (0.95 is asked for).

Each batch is 64 photos as uint8 of 3 x 160 x 160, with labels; `_loader_feeds.py` has the rest of
what is equal. Each worker has one thread, the loop does nothing with its batches, and photos come
in random order without an epoch's end. By default our transforms decode at 1/2, 1/4 or 1/8 where
enough pixels are left, which no peer does: against DALI and the course ours decodes in full, and
what the course makes of a photo is compared with ours first.

Warm: all files are in memory (the page cache where there is no /dev/shm). The contestants take
turns, in a new random order each round, and are stopped in between (`_loader_turns.py`).

Besides, each in a new process: the time to the first batch, and the memory a worker has of its
own, with data sets of millions (`_loader_start.py`). `--no-start` leaves these out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import _loader_start
import _loader_turns
import _photos
import common
import pack

VENV = common.BENCH / ".venv-loader"
PEERS = (
    *("h5py", "simplejpeg", "pillow", "datasets", "webdataset"),
    "nvidia-dali-cuda120==2.4.0",
    "catalogue",  # of mosaicml-streaming, which `_photos.get_mosaic` brings without all it asks for
)
_SLICE = 4  # times as long as in other benchmarks: a turn has to be long against a batch


def main() -> None:
    common.enter_environment(VENV, PEERS)
    start = "--no-start" not in sys.argv
    sys.argv = [word for word in sys.argv if word != "--no-start"]
    effort = common.arguments(__doc__ or "")
    number = 1000 if effort.quick else 3000
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    mosaic = _photos.get_mosaic()
    with _photos.workplace() as folder:
        if _photos.data_root() is None:
            stand_in(folder / "stand-in")
        kind = _photos.make(folder / "photos", number)
        print(f"{number} photos, {kind}\n", flush=True)
        write(folder, mosaic)
        lines = bench(folder, effort, mosaic)
        if start:
            _loader_start.show(effort.quick)
    for line in lines:
        print(json.dumps(line, ensure_ascii=False))


def stand_in(folder: Path) -> None:
    """Where there are no real photos: clouds with grain, of a photo's size, taken for them."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(60):
        small = Image.fromarray(draw.integers(0, 256, (12, 16, 3), np.uint8))
        clouds = np.asarray(small.resize((500, 375), Image.Resampling.BICUBIC), np.float32)
        grainy = np.clip(clouds + draw.normal(0, 12, clouds.shape), 0, 255).astype(np.uint8)
        path = folder / "imagenet-sample" / f"n{number % 10:08d}" / f"{number:04d}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grainy).save(path, quality=80)
    os.environ["RANKUP_DATA"] = str(folder)
    print("no real photos (RANKUP_DATA): generated ones stand for imagenet-sample's")


def write(folder: Path, mosaic: bool) -> None:
    """All containers, by rankup and by the peers' own writers."""
    (folder / "hdf5").mkdir()
    pack.pack(folder / "photos", "hdf5", 2, folder / "hdf5")
    peers = ("course_hdf5_quick", "hugging_face", "web_dataset", *(("mosaic",) if mosaic else ()))
    for name in peers:
        (folder / name).mkdir()
        pack.writer(name, folder / "photos", folder / name)


def bench(folder: Path, effort: common.Effort, mosaic: bool) -> list[dict[str, object]]:
    """Measure all; the claims."""
    import _loader_feeds as feeds
    from _loader_peers import compare_whole

    compare_whole(folder)
    names = [name for name in feeds.FEEDS if mosaic or name != feeds.MOSAIC]
    seconds = _SLICE * effort.slice_seconds
    turns = _loader_turns.measure(names, folder, effort.rounds, seconds)
    rates = {name: [one.rate for one in all_] for name, all_ in turns.items()}
    cpu = {name: 1000 * common.median([one.cpu for one in all_]) for name, all_ in turns.items()}
    middle = {name: common.median(all_) for name, all_ in rates.items()}
    common.table(
        ["", "samples/s", "quartiles", "CPU ms each", "ours / this"],
        [
            [
                name,
                f"{middle[name]:.0f}",
                _quartiles(all_),
                f"{cpu[name]:.2f}",
                _against(rates, feeds.CROP, name),
            ]
            for name, all_ in rates.items()
        ],
    )
    dali = max(feeds.DALI, key=lambda name: middle[name])
    return [
        _claim("loader.decode", rates, feeds.CROP, feeds.BARE, effort.rounds, seconds),
        _claim("loader.dali", rates, feeds.FULL, dali, effort.rounds, seconds, feeds.CROP),
        _claim(
            "loader.course", rates, feeds.WHOLE, feeds.COURSE, effort.rounds, seconds, feeds.SCALED
        ),
        _claim("loader.recipe", rates, feeds.RECIPE, feeds.CROP, effort.rounds, seconds),
    ]


def _quartiles(rates: list[float]) -> str:
    low, high = common.spread(rates).split("…")
    return f"{float(low):.0f}…{float(high):.0f}"


def _against(rates: Mapping[str, list[float]], ours: str, peer: str) -> str:
    """Median of the rounds' ratios, and quartiles."""
    ratios = [a / b for a, b in zip(rates[ours], rates[peer], strict=True)]
    low, high = common.spread(ratios).split("…")
    return f"{common.median(ratios):.2f} ({float(low):.2f}…{float(high):.2f})"


def _claim(
    which: str,
    rates: Mapping[str, list[float]],
    ours: str,
    peer: str,
    rounds: int,
    seconds: float,
    default: str = "",
) -> dict[str, object]:
    """The line of a claim; beside it what ours reaches by default, where that is not the same."""
    scaled = f"; by default, '{default}', {_against(rates, default, peer)}" if default else ""
    return {
        "claim": which,
        "ours": round(common.median(rates[ours])),
        "peer": round(common.median(rates[peer])),
        "unit": "samples/s",
        "better": "higher",
        "note": f"'{ours}' against '{peer}': 2 workers of one thread, photos in memory to uint8 "
        f"batches of 64 x 3 x 160 x 160; median of {rounds} turns of {seconds:.1f} s; ratio "
        f"of each round (quartiles) {_against(rates, ours, peer)}{scaled}",
    }


if __name__ == "__main__":
    main()
