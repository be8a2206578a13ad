"""`rankup status --live`: the picture, drawn again and again until the run has ended."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from ...base.processes import ended_as_an_exception
from . import frame
from .state import Run, Watch

_PAUSE = 1.0  # seconds between looks at the files
_ASK = 15.0  # seconds between questions about the state
_SURE = 3  # looks at which a run that has ended says nothing more
_PRINTED = 60  # lines, where no terminal says how many it has
_SMALL = 16 * 1024  # bytes of the end of each file that a single line needs


def live(run_dir: Path, ask: Callable[[], Run]) -> int:
    """Show the run until it has ended, or until `q` or Ctrl-C; then leave its last picture.

    Where there is no terminal to draw on, one picture is printed.

    Args:
        ask: how the run is. It may take long: it is asked beside the view.

    Returns:
        0.
    """
    console = _console()
    watch = Watch(run_dir, ask())
    watch.look()
    picture = _Picture(watch)
    if console.is_terminal and not console.is_dumb_terminal:
        with ended_as_an_exception(), _asking(watch, ask), _keys() as quits:
            picture.fill = True
            _draw(console, picture, quits)
    picture.fill = False
    console.print(picture)
    return 0


def small(run_dir: Path, steps: int | None = None) -> str:
    """The run in a line: "step 120/4,000 · loss 3.210 · 51,000 tokens/s · GPUs 94 % 310 W".

    Empty where nothing is known yet. Reads the ends of the files only.
    """
    watch = Watch(run_dir, Run(run_dir.name, steps=steps), last=_SMALL)
    watch.look()
    return frame.small(watch)


def _console() -> Console:
    """The terminal as large as it is now: COLUMNS and LINES tell how large it once was."""
    if not sys.stdout.isatty():
        return Console()
    sizes = ("COLUMNS", "LINES")
    return Console(_environ={k: v for k, v in os.environ.items() if k not in sizes})


class _Picture:
    """What Rich draws: as large as its console is at that moment."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.fill = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.size.height
        if not self.fill:  # printed, below a prompt or into a pipe
            height = height - 1 if console.is_terminal else _PRINTED
        yield from frame.frame(self.watch, time.time(), options.max_width, height, self.fill)


def _draw(console: Console, picture: _Picture, quits: Callable[[float], bool]) -> None:
    quiet = 0
    options = {"screen": True, "auto_refresh": False, "redirect_stdout": False}
    with Live(picture, console=console, redirect_stderr=False, **options) as screen:  # type: ignore[arg-type]
        try:
            while quiet < _SURE and not quits(_PAUSE):
                picture.watch.look()
                quiet = quiet + 1 if picture.watch.over() else 0
                screen.refresh()
        except KeyboardInterrupt:
            return


@contextmanager
def _asking(watch: Watch, ask: Callable[[], Run]) -> Iterator[None]:
    """Ask how the run is now and then, in a thread: Slurm may take its time to answer."""
    over = threading.Event()

    def again() -> None:
        while not over.wait(_ASK):
            watch.run = ask()

    threading.Thread(target=again, daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Wait for so many seconds, or until `q` or Ctrl-D is pressed; True then. Ctrl-C interrupts."""
    if not sys.stdin.isatty():
        yield threading.Event().wait
        return
    descriptor = sys.stdin.fileno()

    def pressed(seconds: float) -> bool:
        if not select.select([descriptor], [], [], seconds)[0]:
            return False
        data = os.read(descriptor, 256)
        return not data or bool({*b"qQ\x04"} & {*data})  # no data: the terminal is gone

    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
