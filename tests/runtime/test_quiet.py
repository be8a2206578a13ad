"""`quiet`: off rank 0 no print, no bar, no log line, no writer; rank 0 as ever."""

from __future__ import annotations

import builtins
import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankup.runtime.log import quiet
from rankup.runtime.world import World
from tests.pool import RankPool


@contextmanager
def _left_as_found() -> Iterator[None]:
    """`quiet` is for the rest of a process's life; those of the pool live on.

    A real tensorboardX, which a library may have imported here, is out of the way meanwhile.
    """
    import tqdm

    real = {name: sys.modules.pop(name) for name in _of_tensorboard_x()}
    loud, path = builtins.print, list(sys.path)
    bar, stdout = tqdm.tqdm.__init__, sys.stdout
    try:
        yield
    finally:
        builtins.print, tqdm.tqdm.__init__ = loud, bar
        sys.stdout = stdout
        logging.disable(logging.NOTSET)
        sys.path[:] = path
        for name in _of_tensorboard_x():
            del sys.modules[name]
        sys.modules.update(real)


def _of_tensorboard_x() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "tensorboardX"]


def _said(world: World) -> dict[str, str]:
    with _left_as_found():
        output, errors, log = io.StringIO(), io.StringIO(), io.StringIO()
        logger = logging.getLogger("some.library")
        logger.handlers, logger.propagate = [logging.StreamHandler(log)], False
        logger.setLevel(logging.DEBUG)
        with contextlib.redirect_stdout(output):
            quiet()
            quiet()  # twice is harmless
            sys.stdout.write("a bar of its own\n")
            sys.stdout.flush()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            print("loss", 1.0)
            print("to a file", file=sys.stderr)
            sys.stderr.write("written\n")
        logger.info("info")
        logger.warning("warning")
        logger.error("error")
        return {
            "output": output.getvalue(),
            "errors": errors.getvalue(),
            "log": log.getvalue(),
            "wandb": os.environ.get("WANDB_MODE", ""),
            "tqdm": os.environ.get("TQDM_DISABLE", ""),
        }


def test_print_and_logging(ranks: RankPool) -> None:
    first, *others = ranks.run(3, _said)
    errors = "to a file\nwritten\n"
    assert first == {
        "output": "a bar of its own\nloss 1.0\n",
        "errors": errors,
        "log": "info\nwarning\nerror\n",
        "wandb": "",
        "tqdm": "",
    }
    quiet_one = {"output": "", "errors": errors, "log": "error\n"}
    assert others == [{**quiet_one, "wandb": "disabled", "tqdm": "1"}] * 2


# What scripts do with this package, which need not be installed here.
_WRITER = """
LINES = []
class SummaryWriter:
    def __init__(self, log_dir=None):
        LINES.append("made")
    def add_scalar(self, *values):
        LINES.append("scalar")
    def close(self):
        LINES.append("closed")
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.close()
"""


def _package(folder: Path) -> None:
    (folder / "tensorboardX").mkdir()
    (folder / "tensorboardX" / "__init__.py").write_text(_WRITER)


def _use(bar: Any, range_bar: Any, writer: Any) -> None:
    assert list(bar([1, 2])) == [1, 2]
    assert list(range_bar(2)) == [0, 1]
    with writer("runs") as log:
        log.add_scalar("loss", 1.0, 1)


def _bars(world: World, folder: Path, before: bool) -> tuple[int, list[str]]:
    """What a script draws and logs that imported its names `before` the call of `quiet`, or after.

    Rank 0 calls it too. Returns the bars that were drawn to their end, and the lines.
    """
    sink = io.StringIO()
    with _left_as_found(), contextlib.redirect_stderr(sink):
        sys.path.insert(0, str(folder))
        import tensorboardX  # type: ignore[import-not-found]
        import tqdm  # type: ignore[import-untyped] # torch has imported it already

        names = (tqdm.tqdm, tqdm.trange, tensorboardX.SummaryWriter)
        quiet()
        if not before:
            from tensorboardX import SummaryWriter
            from tqdm.auto import tqdm as bar
            from tqdm.auto import trange

            names = (bar, trange, SummaryWriter)
        _use(*names)
        return sink.getvalue().count("100%"), list(tensorboardX.LINES)


def _counted(world: World) -> tuple[str, list[float]]:
    """What a bar draws, and what a script reads off it."""
    sink = io.StringIO()
    with _left_as_found(), contextlib.redirect_stderr(sink):
        from tqdm import tqdm

        quiet()
        found = []
        with tqdm(total=30, mininterval=0) as bar:
            for loss in (4.0, 2.0):
                bar.update(10)
                bar.set_postfix(loss=loss / bar.n)
                found.append(bar.n)
            found.append(bar.format_dict["total"])
        found += [sum(tqdm([1, 2, 3])), tqdm(total=5, disable=True).update(1) or 0]
        tqdm.write("a line")
    return sink.getvalue(), found


def test_a_silent_bar_counts(ranks: RankPool) -> None:
    (drawn, first), (nothing, second) = ranks.run(2, _counted)
    assert "20/30" in drawn
    assert nothing == ""
    assert first == second == [10, 20, 30, 6, 0]


LOUD = (2, ["made", "scalar", "closed"])


def test_bars_and_writers_imported_afterwards(ranks: RankPool, tmp_path: Path) -> None:
    _package(tmp_path)
    assert ranks.run(2, _bars, tmp_path, False) == [LOUD, (0, [])]


def test_bars_and_writers_imported_before(ranks: RankPool, tmp_path: Path) -> None:
    """`from tqdm import tqdm` stands at the top of a script, `quiet()` after `setup()`."""
    _package(tmp_path)
    assert ranks.run(2, _bars, tmp_path, True) == [LOUD, (0, [])]
