"""All that the view knows of a run, kept up to date by reading what its files have grown by."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...base.files import tail
from ...base.text import encodable
from ...slurm.job import Attempt
from .. import lines
from .growing import LAST, Growing, Table
from .node import Node
from .progress import Progress

_LOG_BYTES = 16 * 1024
_METRICS = 256 * 1024
_JOURNAL = 1024 * 1024  # it has few lines, and is read whole


@dataclass(frozen=True)
class Run:
    """The view's knowledge of a run.

    Attributes:
        attempt: its newest; None where nobody knows of one.
        steps: that it is to take; None where nobody says.
        log: the file that it prints into.
    """

    id: str
    name: str = ""
    attempt: Attempt | None = None
    steps: int | None = None
    log: Path | None = None


@dataclass
class Watch:
    """A run that is being looked at; `look` reads what is new.

    Attributes:
        log: its newest lines, as they stand in the file: not `clean`.
    """

    path: Path
    run: Run
    last: int = LAST
    progress: Progress = field(default_factory=Progress)
    nodes: dict[str, Node] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    _files: dict[str, Growing] = field(default_factory=dict)
    _tables: dict[str, tuple[Table, Table]] = field(default_factory=dict)
    _metrics: Growing | None = None

    def look(self) -> None:
        """Read what the files of nodes and steps have grown by, and the end of the log."""
        self._find_nodes()
        for name, file in self._files.items():
            begun = file.begun
            found = file.read()
            if file.begun != begun and begun:
                self.nodes[name] = Node(encodable(name))
            if found:
                self.nodes[name].take(found)
            host, gpu = self._tables[name]
            # The host's row is written last, so that the rows of its GPUs are there.
            self.nodes[name].sampled(host.read(), gpu.read())
        self._look_at_steps()
        self._look_at_log()

    def known(self) -> list[Node]:
        """Nodes that have said something, by name."""
        said = [node for node in self.nodes.values() if node.begun is not None or node.samples]
        return sorted(said, key=lambda node: node.name)

    def over(self) -> bool:
        """Whether nothing more will come."""
        attempt = self.run.attempt
        # Of a run on another node nobody here knows; its samplers say whether it goes on.
        if attempt is not None and attempt.state != "UNKNOWN":
            return not attempt.live
        nodes = self.known()
        ended = bool(nodes) and all(node.ended is not None for node in nodes)
        return ended or (self.progress.final and not nodes)

    def _find_nodes(self) -> None:
        folder = self.path / lines.FOLDER
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name.removesuffix(lines.JOURNAL)
                if name != entry.name and name not in self._files:
                    self._files[name] = Growing(folder / entry.name, _JOURNAL)
                    self._tables[name] = (self._table(name, "host"), self._table(name, "gpu"))
                    self.nodes[name] = Node(encodable(name))

    def _table(self, node: str, kind: str) -> Table:
        return Table(self.path / lines.FOLDER / f"{node}{lines.ending(kind)}", self.last)

    def _look_at_steps(self) -> None:
        if self._metrics is None:
            self._metrics = Growing(self.path / "metrics.jsonl", _METRICS)
        begun = self._metrics.begun
        found = self._metrics.read()
        if self._metrics.begun != begun:
            self.progress = Progress()
        for record in found:
            self.progress.take(record)

    def _look_at_log(self) -> None:
        if self.run.log is not None:
            found = (line.decode("utf-8", "replace") for line in tail(self.run.log, _LOG_BYTES))
            self.log = [line for line in found if line.strip()]
