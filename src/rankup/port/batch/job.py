"""A batch file with what it would start: what the rules look at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from .script import BatchScript
from .shell import Command
from .table import Step, Table

# Of scripts that start a process per GPU, or use several from one process.
_MANY = re.compile(
    rb"DataParallel\(|nn\.DataParallel|device_map|mp\.spawn|multiprocessing\.spawn|\bTrainer\b"
    rb"|lightning|accelerate|deepspeed|tensor_parallel_size|cuda:1\b|start_processes|submitit"
)
_READS = re.compile(
    rb"""environ\[["'](?:RANK|LOCAL_RANK|WORLD_SIZE)["']\](?!\s*=[^=])|\binit_process_group\("""
)
# It finds out by itself, or something that it imports does.
_ITSELF = re.compile(
    rb"SLURM_|PMI_|OMPI_|mpi4py|idr_torch|environ\[[\"']RANK[\"']\]\s*=[^=]|environ\.setdefault"
    rb"|environ\.update|\brankup\b|lightning|submitit|mp\.spawn|multiprocessing|start_processes"
    rb"|\brank\s*=\s*(?:args|cfg|opt|int|rank|get)\b|tcp://|file://|hostlist|horovod|deepspeed"
)
_BY_LOCAL_RANK = re.compile(rb"LOCAL_RANK|local_rank|SLURM_LOCALID")


@dataclass(frozen=True)
class Job:
    """A batch file, read and tried."""

    script: BatchScript
    table: Table

    @cached_property
    def steps(self) -> list[Step]:
        """What it starts in any case."""
        return [one for one in self.table.steps if not one.doubt]

    def content(self, step: Step) -> bytes:
        """The Python file of a step; empty where it is not known."""
        name = step.program.script
        return b"" if name is None or step.moved else self.script.content(name)

    def many(self, step: Step) -> bool:
        """True where one process uses several GPUs, or starts more by itself, or where that is
        not known."""
        return step.program.script is None or bool(_MANY.search(self.content(step)))

    def distributed(self, step: Step) -> bool:
        """True of a script that is seen to read its rank from torch's variables."""
        text = self.content(step)
        return bool(_READS.search(text)) and not _ITSELF.search(text)

    def by_local_rank(self, step: Step) -> bool:
        """True of a script that chooses its GPU by its number on the node."""
        text = self.content(step)
        chooses = re.search(rb"set_device\(|\.to\(|cuda:|device_ids", text)
        return bool(chooses and _BY_LOCAL_RANK.search(text) and b"device_count()" not in text)

    def command(self, line: int) -> Command | None:
        """The command of the file at a line; None where the parser has not read it."""
        held = [one for one in self.script.commands if one.line <= line <= one.end_line]
        return held[-1] if held else None

    def background(self, step: Step) -> bool:
        """True of what is started with `&`, or where that is not known."""
        command = self.command(step.line)
        return command is None or command.background

    def line_of(self, pattern: str, otherwise: int, begin: int = 1) -> int:
        """The first line from `begin` on with a pattern."""
        lines = enumerate(self.script.lines[begin - 1 :], begin)
        found = (at for at, text in lines if re.search(pattern, text) and text[:1] != "#")
        return next(found, otherwise)

    @cached_property
    def spread(self) -> bool:
        """True where other launchers than srun reach the other nodes, or may."""
        names = {words[0].rpartition("/")[2] for _, words in self.table.others if words}
        known = {
            "mpirun",
            "mpiexec",
            "ssh",
            "pdsh",
            "clush",
            "parallel",
            "prun",
            "pbsdsh",
            "sbatch",
        }
        kinds = {one.program.kind for one in self.steps}
        launchers = kinds - {"python", "torchrun", "torchrun_jsc", "launch", "accelerate"}
        return bool(names & known or launchers)

    def single(self) -> Iterator[Step]:
        """One step of each line, in order; loops start the same several times."""
        seen: set[int] = set()
        for step in self.steps:
            if step.line not in seen:
                seen.add(step.line)
                yield step

    def group(self, step: Step) -> list[Step]:
        """The steps that run at the same time as one in the background, of the same launch."""
        if not self.background(step):
            return [step]
        return [
            one
            for one in self.steps
            if self.background(one) and one.program.script == step.program.script
        ]
