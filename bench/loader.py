"""Photos to batches with 2 workers: our `Loader` against the course's, DALI's, and bare decoding.

Claims, each in samples/s: `loader.decode`, the Loader over HDF5 against a loop of the same
transform in two processes that hand nothing on; `loader.dali`, against DALI on the CPU with 2
threads, the better of its own reader of files and of one that takes bytes and order from rankup;
`loader.course`, the whole photo resized by us against the course's HDF5 reader and transform
(Pillow, float at full size, antialiased resize) in torch's DataLoader with 2 workers.

Each batch is 64 photos as uint8 of 3 x 160 x 160, with labels; `_loader_feeds.py` has the rest of
what is equal. Each worker has one thread, the loop does nothing with its batches, and photos come
in random order without an epoch's end. By default our transforms decode at 1/2, 1/4 or 1/8 where
enough pixels are left, which no peer does: against DALI and the course ours decodes in full, and
what the course makes of a photo is compared with ours first.

Warm: all files are in memory (the page cache where there is no /dev/shm). The contestants take
turns, in a new random order each round. A loader makes batches ahead, also while another one is
measured: so all processes of those whose turn it is not are stopped (SIGSTOP), workers included.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import _photos
import pack
from _ranks import answer_of
from common import (
    BENCH,
    claim,
    enter_environment,
    machine,
    median,
    paired,
    parse_effort,
    spread,
    table,
)

VENV = BENCH / ".venv-loader"
PEERS = (
    *("h5py", "simplejpeg", "pillow", "psutil", "datasets", "webdataset"),
    "nvidia-dali-cuda120==2.4.0",
)
_SLICE = 4  # times as long as in other benchmarks: a turn has to be long against a batch
_ANSWER_SECONDS = 180
_LEAVE_SECONDS = 20
_FEEDS = Path(__file__).with_name("_loader_feeds.py")
# Keeps each worker to one thread, and from looking for a GPU.
ONE_THREAD = {
    **{"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    **{"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
}


class Turn(NamedTuple):
    """Result of a contestant's turn.

    Attributes:
        rate: samples/s.
        cpu: CPU seconds per sample, of all its processes.
    """

    rate: float
    cpu: float


class Feed:
    """One contestant of `_loader_feeds.FEEDS`, in a process group of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process lives
        self._process = subprocess.Popen(
            [sys.executable, "-u", _FEEDS, name, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **ONE_THREAD, "TMPDIR": str(folder)},
            text=True,
            start_new_session=True,
        )

    def ready(self) -> None:
        """Wait until it has made its first batches, and stop it."""
        self._answer()
        self._signal(signal.SIGSTOP)

    def slice(self, seconds: float) -> Turn:
        """Work for about that time."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        turn = Turn(*map(float, self._answer().split()))
        self._signal(signal.SIGSTOP)
        return turn

    def leave(self) -> None:
        """Let it end by itself: mosaicml-streaming would leave files in /dev/shm for ever."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _answer(self) -> str:
        return answer_of(self._process, self._log, self.name, _ANSWER_SECONDS)


@contextlib.contextmanager
def feeds(names: Sequence[str], folder: Path) -> Iterator[list[Feed]]:
    """Yield contestants that are ready; they end with the block."""
    made: list[Feed] = []
    try:
        made.extend(Feed(name, folder) for name in names)
        for one in made:
            one.ready()
        yield made
    finally:
        for one in made:
            one.leave()
        for one in made:
            one.close()


def measure(
    names: Sequence[str], folder: Path, rounds: int, seconds: float
) -> dict[str, list[Turn]]:
    """Return the turns of each contestant, one a round, in a new random order each time."""
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    with feeds(names, folder) as all_:
        for _ in range(rounds):
            for one in random.sample(all_, len(all_)):
                turns[one.name].append(one.slice(seconds))
    return turns


def main() -> None:
    effort = parse_effort(__doc__ or "")
    enter_environment(VENV, PEERS)
    number = 1000 if effort.quick else 3000
    print(machine("torch", "nvidia-dali-cuda120"))
    with _photos.workplace() as folder:
        if _photos.data_root() is None:
            stand_in(folder / "stand-in")
        kind = _photos.make(folder / "photos", number)
        print(f"{number} photos, {kind}\n", flush=True)
        write(folder)
        seconds = (1 if effort.quick else _SLICE) * effort.slice_seconds
        for line in bench(folder, effort.rounds, seconds):
            print(line)


def stand_in(folder: Path) -> None:
    """Generate photos where there are no real ones: clouds with grain, of a photo's size."""
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
    print("bench: no real photos (RANKUP_DATA); generated ones take the place of imagenet-sample's")


def write(folder: Path) -> None:
    """Write all containers, by rankup and by the peers' own writers."""
    (folder / "hdf5").mkdir()
    pack.pack(folder / "photos", "hdf5", 2, folder / "hdf5")
    for name in ("course_hdf5_quick", "hugging_face", "web_dataset"):
        (folder / name).mkdir()
        pack.writer(name, folder / "photos", folder / name)


def bench(folder: Path, rounds: int, seconds: float) -> list[str]:
    """Measure and print everything; return the claim lines."""
    import _loader_feeds as feeds
    from _loader_peers import compare_whole

    compare_whole(folder)
    turns = measure(list(feeds.FEEDS), folder, rounds, seconds)
    rates = {name: [one.rate for one in all_] for name, all_ in turns.items()}
    rows = []
    for name, all_ in rates.items():
        cpu = 1000 * median([one.cpu for one in turns[name]])
        cells = [f"{median(all_):.0f}", spread(all_, 0), f"{cpu:.2f}"]
        rows.append([name, *cells, paired(rates[feeds.CROP], all_, 2)])
    table(["", "samples/s", "quartiles", "CPU ms each", "ours / this"], rows)
    dali = max(feeds.DALI, key=lambda name: median(rates[name]))
    about = f"median of {rounds} turns of {seconds:.1f} s"
    return [
        _claim("loader.decode", rates, feeds.CROP, feeds.BARE, about),
        _claim("loader.dali", rates, feeds.FULL, dali, about, feeds.CROP),
        _claim("loader.course", rates, feeds.WHOLE, feeds.COURSE, about, feeds.SCALED),
    ]


def _claim(
    name: str,
    rates: Mapping[str, list[float]],
    ours: str,
    peer: str,
    about: str,
    default: str = "",
) -> str:
    """Return a claim line; beside it what ours reaches by default, where that is not the same."""
    scaled = (
        f"; by default, '{default}', {paired(rates[default], rates[peer], 2)}" if default else ""
    )
    note = (
        f"'{ours}' against '{peer}': 2 workers of one thread, photos in memory to uint8 batches of "
        f"64 x 3 x 160 x 160; {about}; paired {paired(rates[ours], rates[peer], 2)}{scaled}"
    )
    return claim(name, median(rates[ours]), median(rates[peer]), "samples/s", note)


if __name__ == "__main__":
    main()
