"""`rankup demo`: one rank and two, side by side, once the port is verified."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from rankup.base.errors import UserError
from rankup.launch.demo import Side, difference, read, table
from tests.conftest import RunRankup

ROOT = Path(__file__).resolve().parents[2]
ONE = Side(1, [4.0, 2.0, 1.0], 1.5, 30.0, 12_345.6)
TWO = Side(2, [4.0, 2.00002, 1.0], 1.5, 16.0, 23_000.0)


def _metrics(folder: Path, steps: int, final: bool) -> Path:
    records = [
        {"step": i + 1, "loss": 4.0 / (i + 1), "tokens_per_s": 100.0 * (i + 1), "time": 10.0 + i}
        for i in range(steps)
    ]
    last = [{"final": True, "valid_loss": 1.5, "test_loss": 1.6}] if final else []
    lines = [json.dumps(record) + "\n" for record in [*records, *last]]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def test_read(tmp_path: Path) -> None:
    side = read(_metrics(tmp_path, 4, True), 2)
    assert side == Side(2, [4.0, 2.0, 4.0 / 3, 1.0], 1.5, 3.0, 300.0)


@pytest.mark.parametrize(("steps", "final"), [(4, False), (1, True), (0, True)])
def test_an_unfinished_run_is_refused(tmp_path: Path, steps: int, final: bool) -> None:
    with pytest.raises(UserError, match="not a finished run"):
        read(_metrics(tmp_path, steps, final), 1)


def test_difference() -> None:
    assert difference(ONE, ONE) == 0
    assert difference(ONE, TWO) == pytest.approx(1e-5)
    with pytest.raises(ValueError, match="zip"):
        difference(ONE, Side(2, [4.0], 1.5, 16.0, 1.0))


def test_table() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(ONE, TWO))
    text = console.export_text()
    assert "one thread per rank" in text
    one, two = (re.sub(r"[│┃\s]+", " ", line).split() for line in text.splitlines()[-3:-1])
    assert one == ["1", "4.00000", "1.00000", "1.50000", "12,346", "30.0", "s", "1.00"]
    assert two == ["2", "4.00000", "1.00000", "1.50000", "23,000", "16.0", "s", "1.88"]


def test_samples_to_try_things_on(rankup_here: RunRankup, tmp_path: Path) -> None:
    done = rankup_here(["demo", "--files", "samples"])
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "samples"
    assert {path.name for path in folder.iterdir()} == {
        *("train.py", "language.py", "summarize.py", "classify.py"),
        *("text", "articles", "photos", "by-hand"),
    }
    by_hand = {path.name for path in (folder / "by-hand").iterdir()}
    assert by_hand == {path.name for path in ROOT.glob("examples/*.py")} - {
        *("language.py", "summarize.py", "classify.py", "one_gpu_fastai.py")
    }
    listed = rankup_here(["recipes"]).stdout
    assert [name for name in by_hand if f"\n{name} " not in listed] == []
    commands = re.findall(r"rankup (.*)", done.stdout)
    assert len(commands) == 7
    assert rankup_here(commands[0].split(), cwd=folder).returncode == 1  # its findings
    packed = rankup_here(commands[1].split(), cwd=folder)
    assert "files: 400 files -> 3 files" in packed.stdout
    again = rankup_here(["demo", "--files", "samples"])
    assert again.returncode == 2
    assert again.stderr == "rankup: samples/train.py is there already; name a new folder\n"
    file = rankup_here(["demo", "--files", "samples/train.py/folder"])
    assert (file.returncode, file.stderr.count("\n")) == (2, 1)
    assert "cannot be written into samples/train.py/folder" in file.stderr


def _on_a_terminal(command: list[str], folder: Path, columns: int) -> tuple[int, list[str]]:
    """The exit code of a command, and the lines it shows on a terminal."""
    terminal, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "RANKUP_MONITOR"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=end, stdout=end, stderr=end
    )
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that the other end is closed
        while data := os.read(terminal, 1 << 16):
            shown += data
    os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    return process.wait(), [line.rstrip() for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_demo(tmp_path: Path) -> None:
    code, lines = _on_a_terminal([sys.executable, "-m", "rankup", "demo"], tmp_path, 80)
    shown = "\n".join(lines)
    assert code == 0, shown
    runs = tmp_path / "runs" / "demo"
    assert [line for line in lines if len(line) > 80 and str(runs) not in line] == []
    rows = [re.sub(r"[│┃\s]+", " ", line).split() for line in lines if line[:1] == "│"]
    assert [row[0] for row in rows] == ["1", "2"]
    one, two = ([float(cell) for cell in row[1:4]] for row in rows)
    assert one == pytest.approx(two, rel=1e-5)
    match = re.search(r"difference of the two loss curves: (\S+)", shown)
    assert match is not None
    assert float(match[1]) < 1e-5
    assert "the same run on 1, 2 and 3 ranks" in shown
    assert shown.count("draws the page and the PDF") == 1  # not after each run
    made = sorted(runs.iterdir())
    assert len(made) == 3  # the script and its port, a run on one rank, a run on two
    assert sorted(path.name for path in made[0].iterdir()) == ["train.py", "train_dist.py"]
