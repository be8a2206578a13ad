"""Small trees of /proc and /sys under a folder."""

from __future__ import annotations

from pathlib import Path

G = 1 << 30


def write(root: Path, texts: dict[str, str]) -> None:
    """Files by their path below `root`."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def process(
    root: Path,
    pid: int,
    parent: int = 1,
    *,
    name: str = "python",
    start: int = 1000,
    cpu: int = 0,
    environ: dict[str, str] | None = None,
    command: str = "python train.py",
    io: tuple[int, int] = (0, 0),
    state: str = "S",
) -> None:
    """Write /proc/PID of one process; `cpu` in ticks, a third of them of the kernel."""
    own = f"{cpu - cpu // 3} {cpu // 3}"
    rest = f"{parent} 1 1 0 -1 4194304 9 0 0 0 {own} 777 777 20 0 1 0 {start} 9999 256"
    write(
        root,
        {
            f"proc/{pid}/stat": f"{pid} ({name}) {state} {rest} 18446744073709551615 0 0\n",
            f"proc/{pid}/environ": "".join(f"{k}={v}\0" for k, v in (environ or {}).items()),
            f"proc/{pid}/cmdline": command.replace(" ", "\0"),
            f"proc/{pid}/io": f"rchar: {io[0]}\nwchar: {io[1]}\nsyscr: 1\nread_bytes: 0\n",
        },
    )
