"""`rankup status --live`: the picture, drawn again and again until the run has ended."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from ...base.processes import ended_as_an_exception
from . import frame
from .keys import Keys, keys
from .rows import Paper
from .state import State
from .watch import Watch
from .words import NICE, PLAIN

_PAUSE = 1.0  # seconds between looks at the files
_ASK = 15.0  # seconds between questions about the state
_SURE = 3  # looks at which a run that has ended says nothing more
_PRINTED = 60  # lines, where no terminal says how many it has
_SMALL = 16 * 1024  # bytes of the end of each file that a single line needs
_MOVES = {"up": -1, "down": 1, "page up": -10, "page down": 10}


def live(
    run_dir: Path,
    ask: Callable[[], State] | None = None,
    *,
    console: Console | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Show the run until it has ended, or until `q` or Ctrl-C; then leave its last picture.

    Where there is no terminal to draw on, one picture is printed.

    Args:
        ask: how the run is, Slurm's answer say; by default what the run directory says. It may
            take long: it is asked beside the view.
        clock: unix seconds.

    Returns:
        0.
    """
    console = console or _console()
    watch = Watch(run_dir, ask)
    watch.look_at_state()
    watch.look()
    picture = Picture(watch, clock)
    if console.is_terminal and not console.is_dumb_terminal:
        with ended_as_an_exception(), _asking(watch), keys() as pressed:
            picture.keys = pressed.any
            _draw(console, picture, pressed)
    picture.fill = False
    console.print(picture)
    return 0


def _console() -> Console:
    """The terminal as large as it is now: COLUMNS and LINES tell how large it once was."""
    if not sys.stdout.isatty():
        return Console()
    sizes = ("COLUMNS", "LINES")
    return Console(_environ={k: v for k, v in os.environ.items() if k not in sizes})


def small(run_dir: Path) -> str:
    """The run in a line: "step 120/4,000 · loss 3.210 · 51,000 tokens/s · GPUs 94 % 310 W".

    Empty where nothing is known yet. Reads the ends of the files only.
    """
    watch = Watch(run_dir, last=_SMALL)
    watch.look_at_state()
    watch.look()
    return frame.small(watch)


class Picture:
    """What Rich draws: as large as its console is at that moment."""

    def __init__(self, watch: Watch, clock: Callable[[], float]) -> None:
        self.watch = watch
        self.clock = clock
        self.scroll = 0
        self.keys = False
        self.fill = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = PLAIN if options.ascii_only else NICE
        paper = Paper(options.max_width, signs, self.clock())
        height = options.size.height
        if not self.fill:  # printed, below a prompt or into a pipe
            height = height - 1 if console.is_terminal else _PRINTED
        keys = self.keys and self.fill
        lines = frame.frame(self.watch, paper, height, self.scroll, keys, self.fill)
        if options.ascii_only:  # one character for one, so that colours stay where they were
            for line in lines:
                line.plain = line.plain.encode("ascii", "replace").decode()
        yield Text("\n").join(lines)

    def move(self, key: str) -> None:
        most = frame.most_scroll(self.watch)
        self.scroll = 0 if key == "home" else self.scroll + _MOVES.get(key, 0)
        self.scroll = min(max(0, self.scroll), most)


def _draw(console: Console, picture: Picture, pressed: Keys) -> None:
    quiet = 0
    options = {"screen": True, "auto_refresh": False, "redirect_stdout": False}
    with Live(picture, console=console, redirect_stderr=False, **options) as screen:  # type: ignore[arg-type]
        try:
            while quiet < _SURE:
                for key in pressed.wait(_PAUSE):
                    if key == "quit":
                        return
                    picture.move(key)
                picture.watch.look()
                quiet = quiet + 1 if picture.watch.over() else 0
                screen.refresh()
        except KeyboardInterrupt:
            return


class _asking:  # noqa: N801 - a context, used as a function
    """Asks how the run is now and then, in a thread: Slurm may take its time to answer."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _ask(self) -> None:
        while not self._over.wait(_ASK):
            self._watch.look_at_state()
