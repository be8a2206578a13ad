"""Slurm's commands as fakes on PATH that answer what a test tells them to.

slurm = FakeSlurm(tmp_path)
slurm.answers("scontrol show job", out=recorded("22.05.8/killed.txt"))
client = Client(environment=slurm.environment)
...
assert slurm.calls("sbatch") == [["--parsable", "job.sh"]]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COMMANDS = ("sbatch", "squeue", "scontrol", "sinfo", "sacct", "sacctmgr", "scancel", "srun")
_HERE = Path(__file__).resolve().parent


def recorded(name: str) -> str:
    """A recorded output, such as "22.05.8/killed.txt"."""
    return (_HERE / name).read_text()


class FakeSlurm:
    """A folder of fake commands. One that has no answer but `scontrol ping` fails, and says so.

    Attributes:
        environment: in which the fakes are found before anything else.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "fake-slurm"
        programs = self._folder / "bin"
        programs.mkdir(parents=True)
        for command in COMMANDS:
            program = programs / command
            # -S and -E: it starts in a third of the time.
            program.write_text(f"#!{sys.executable} -SE\n{(_HERE / 'command.py').read_text()}")
            program.chmod(0o755)
        path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
        self.environment: Mapping[str, str] = {
            **os.environ,
            "PATH": path,
            "FAKE_SLURM": str(self._folder),
        }
        self._answers: list[dict[str, object]] = []
        self.answers("scontrol ping", out=recorded("22.05.8/ping.txt"))

    def answers(
        self, words: str, out: str = "", err: str = "", code: int = 0, seconds: float = 0
    ) -> None:
        """What a command prints that has all of `words`, in this order; the latest rule wins.

        Args:
            seconds: how long it takes.
        """
        rule = {"words": words.split(), "out": out, "err": err, "code": code, "seconds": seconds}
        self._answers.insert(0, rule)
        (self._folder / "answers.json").write_text(json.dumps(self._answers))

    def unreachable(self) -> None:
        """From now on no controller and no accounting answers."""
        for command in COMMANDS:
            said = "Unable to contact slurm controller (connect failure)"
            self.answers(command, err=f"{command}: error: {said}\n", code=1)

    def calls(self, command: str) -> list[list[str]]:
        """The arguments of each call of a command so far."""
        return [call["argv"] for call in self._calls() if call["command"] == command]

    def environments(self, command: str) -> list[dict[str, str]]:
        """The environment of each call of a command so far."""
        return [call["environment"] for call in self._calls() if call["command"] == command]

    def _calls(self) -> list[dict[str, Any]]:
        path = self._folder / "calls.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]
