"""A batch file with what it would start: what the rules look at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from .script import BatchScript
from .table import Step, Table, executed, first_of_each_line

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
_CHOOSES = re.compile(rb"set_device\(|\.to\(|cuda:|device_ids")
_BY_LOCAL_RANK = re.compile(rb"LOCAL_RANK|local_rank|SLURM_LOCALID")
# Launchers that reach other nodes without srun.
_SPREADING = (
    "mpirun", "mpiexec", "ssh", "pdsh", "clush", "parallel", "prun", "pbsdsh", "sbatch",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A batch file, read and tried."""

    script: BatchScript
    table: Table

    @cached_property
    def steps(self) -> list[Step]:
        """What it starts in any case."""
        return [step for step in self.table.steps if not step.doubt]

    @cached_property
    def single(self) -> list[Step]:
        """One step of each line, in order."""
        return first_of_each_line(self.steps)

    @cached_property
    def last(self) -> Step:
        """The last step; where several scripts are started, the last that trains."""
        if len({step.program.name for step in self.steps}) > 1:
            for step in reversed(self.steps):
                role = self.script.understood(step.program.script or "")
                if role is not None and role.trains:
                    return step
        return self.steps[-1]

    @cached_property
    def again(self) -> Table:
        """What another job of the same file does, whose last program fails."""
        return executed(self.script, self.table.allocation, 1, self.last.line)

    @cached_property
    def serial(self) -> list[Step]:
        """Launches of single nodes of one run, each of which waits for the one before to end."""
        launches = [
            step for step in self.steps
            if step.program.kind != "python" and (step.agents or 1) > 1 and step.sure
            if step.srun is not None and not step.background
        ]  # fmt: skip
        for first in launches:
            alike = [step for step in launches if step.program.script == first.program.script]
            ranks = [{place.rank for place in step.places} for step in alike]
            told = all(len(of_step) == 1 and None not in of_step for of_step in ranks)
            if len(alike) > 1 and told and len(set.union(*ranks)) == len(alike):
                return alike
        return []

    @cached_property
    def spread(self) -> bool:
        """True where other launchers than srun reach the other nodes, or may."""
        others = any(step.program.kind != "python" and not step.program.launches
                     for step in self.steps)  # fmt: skip
        return others or bool(self.table.named(*_SPREADING))

    def content(self, step: Step) -> bytes:
        """The Python file of a step; empty where it is not known."""
        name = step.program.script
        return b"" if name is None or step.moved else self.script.content(name)

    def many(self, step: Step) -> bool:
        """True where one process uses several GPUs or starts more, or where that is not known."""
        return step.program.script is None or bool(_MANY.search(self.content(step)))

    def distributed(self, step: Step) -> bool:
        """True of a script that is seen to read its rank from torch's variables."""
        text = self.content(step)
        return bool(_READS.search(text)) and not _ITSELF.search(text)

    def by_local_rank(self, step: Step) -> bool:
        """True of a script that chooses its GPU by its number on the node."""
        text = self.content(step)
        chooses = _CHOOSES.search(text) and b"device_count()" not in text
        return bool(chooses and _BY_LOCAL_RANK.search(text))
