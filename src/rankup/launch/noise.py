"""What a log says that means nothing: known lines and blocks, folded into one line each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .failure import broken_by_peer

_STORE = "an agent of torchrun lost the first node's, which had ended before"
_TOLD = "an agent of torchrun was told to stop"
_OWN = "torchrun's own traceback; what failed stands below it"
_BANNER = "torchrun's summary; the rank's own exception stands at the end"
_ENDS = "srun ends the ranks that are left"
_PEER = "{}lost its connection: another rank had ended"

# Single lines: (pattern, what they are).
_LINES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (
            r"torch/distributed/run\.py:\d+\] *(\**|Setting OMP_NUM_THREADS .*)$",
            "torchrun's remark on OMP_NUM_THREADS",
        ),
        (r"^\[W.*socket\.cpp:\d+\].*(IPv6|errno: ?97|Address family)", "IPv6 is not in use here"),
        (
            r"^(srun|slurmstepd).*lacks support for cpu binding",
            "this Slurm does not bind ranks to cores",
        ),
        (r"^(srun|slurmstepd|slurmd|\S+): .*pmix", "Slurm's plugin for MPI, which nobody uses"),
        (r"dynamic_rendezvous\.py:\d+\].*RendezvousConnectionError", _STORE),
        (
            r"elastic/agent/server/api\.py:\d+\] Received \d+ death signal"
            r"|multiprocessing/api\.py:\d+\] Sending process \d+ closing signal"
            r"|elastic/agent/server/api\.py:\d+\] Received Signals\.SIG",
            "torchrun stops the other ranks of a node",
        ),
        (r"^\[W.*destroy_process_group\(\) was not called", "the process group was left open"),
        (r"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks", "ranks found each other"),
    )
)
# What srun says while it ends a step in which a rank has failed.
_STEP = re.compile(
    r"^srun: error: \S{1,100}: tasks? [\d,\-\[\]]{1,100}: (Terminated|Exited with exit code \d+)"
    r"|^srun: (Force Terminated|Terminating) StepId|^srun: forcing job termination"
    r"|^srun: Job step aborted: Waiting|^(slurmstepd|srun)\S{0,80}: (error: )?got SIGCONT"
    r"|^\S{1,80}: (\S{1,80} )?(error: )?_step_signal: Terminating"
    r"|^slurmstepd\S{0,80}: error: \*\*\* STEP \S{1,80} ON \S{1,200} CANCELLED AT \S{1,40} \*\*\*"
    r"|^error: \*\*\* PREEMPTION for (?!job )\S{1,80} \*\*\*"  # psslurm's, of a step
)
# A line of torchrun's own traceback, where those of two agents are mixed line by line.
_AGENT = re.compile(
    r'^  File "[^"]*(bin/torchrun|torch/distributed/(run\.py|launcher/|elastic/))'
    r"|^    (sys\.exit\(main\(\)\)|return f\(\*args, \*\*kwargs\)|run\(args\)|elastic_launch\()$"
    r"|^    (return launch_agent\(|raise ChildFailedError\()$|^ +\^+$"
    r"|^torch\.distributed\.elastic\S{0,80}ChildFailedError: *$"
)
# Lines that the C++ side of torch writes below one another.
_NATIVE = re.compile(
    r"^\[W.*TCPStore\.cpp:\d+\].*(recvVector|recvValue|sendBytes|recvBytes)\w{0,40} failed"
)
_NATIVE_MORE = re.compile(r"^(Exception raised from |frame #\d+:|<omitting python frames>|\s*$)")

_RANK = re.compile(r"^(\[rank\d+\]: ?)(.*)$")
_TRACEBACK = "Traceback (most recent call last):"
_RULE = re.compile(r"^=={40,}$")
_ENDED = re.compile(r"multiprocessing/api\.py:\d+\] failed \(exitcode: \d+\) local_rank: ")
_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
_LONGEST = 2000  # lines of a traceback; what is longer is none
_LOOK = 1000  # characters of a line that patterns look at


@dataclass
class Fold:
    """Lines of a log in, lines for people out; what is harmless comes out as one line per kind.

    Feed it line by line; `flush` when there are no more, or none for a while.

    Args:
        told: whether the ranks have written down themselves what happened. torchrun's summary then
            says less, and names the rank that ended first rather than the one that failed.
        counts: where given, lines of each harmless kind are counted there instead of shown.
    """

    told: Callable[[], bool] = lambda: False
    counts: dict[str, int] | None = None
    _words: str = ""
    _count: int = 0
    _native: bool = False
    _banner: list[str] = field(default_factory=list)
    _open: dict[str, list[str]] = field(default_factory=dict)

    def feed(self, line: str) -> list[str]:
        """The lines to show now, none while a block is not through."""
        looked = line[:_LOOK]
        if self._banner or (_RULE.match(line) and self.told()):
            return self._summary(line)
        if _ENDED.search(looked) and self.told():
            return self._harmless(_BANNER)
        if _STEP.search(looked) and self.told():
            return self._harmless(_ENDS)
        if self._native and _NATIVE_MORE.match(line):
            return self._harmless(self._words or _STORE)
        self._native = bool(_NATIVE.match(looked))
        if self._native:
            return self._harmless(_STORE)
        match = _RANK.match(line)
        prefix, text = (match[1].rstrip(), match[2]) if match else ("", line)
        out: list[str] = []
        for other in [name for name in self._open if name and name != prefix]:
            if not _in_frames(_bare(self._open[other][-1])):
                out += self._close(other)
        block = self._open.get(prefix)
        if block is not None:
            if _goes_on(_bare(block[-1]), text) and len(block) < _LONGEST:
                block.append(line)
                return out
            out += self._close(prefix)
        if text.startswith(_TRACEBACK):
            self._open[prefix] = [line]
            return out
        if _AGENT.search(looked) and self.told():
            return [*out, *self._harmless(_OWN)]
        for pattern, words in _LINES:
            if pattern.search(looked):
                return [*out, *self._harmless(words)]
        return [*out, *self._said(), line]

    def flush(self) -> list[str]:
        """What has been held back."""
        out: list[str] = []
        for prefix in list(self._open):
            out += self._close(prefix)
        banner, self._banner = self._banner, []
        return [*out, *self._said(), *banner]

    def _summary(self, line: str) -> list[str]:
        """From one double rule to the next, where the first is that of a summary."""
        self._banner.append(line)
        if len(self._banner) == 2 and not line.endswith(" FAILED"):
            kept, self._banner = self._banner, []
            return [*self._said(), *kept]
        if len(self._banner) > 2 and (_RULE.match(line) or len(self._banner) > _LONGEST):
            count, self._banner = len(self._banner), []
            closed = [out for prefix in list(self._open) for out in self._close(prefix)]
            return [*closed, *self._harmless(_BANNER, count)]
        return []

    def _harmless(self, words: str, lines: int = 1) -> list[str]:
        if self.counts is not None:
            self.counts[words] = self.counts.get(words, 0) + lines
            return []
        out = self._said() if words != self._words else []
        self._words, self._count = words, self._count + lines
        return out

    def _said(self) -> list[str]:
        words, count, self._words, self._count = self._words, self._count, "", 0
        return [_said(words, count)] if words else []

    def _close(self, prefix: str) -> list[str]:
        """The end of a traceback: folded where it is known, else as it is."""
        block = self._open.pop(prefix)
        blank = []
        while block and not _bare(block[-1]).strip():
            blank.append(block.pop())
        words = _of_traceback(block, prefix)
        if not words and all(_AGENT.search(line[:_LOOK]) for line in block[1:]) and self.told():
            words = _OWN  # cut off by another agent's
        if words:
            return self._harmless(words, len(block) + len(blank))
        return [*self._said(), *block, *blank]


def fold(lines: list[str], told: Callable[[], bool] = lambda: False) -> list[str]:
    """`Fold` over all lines of a text."""
    folder = Fold(told)
    return [out for line in lines for out in folder.feed(line)] + folder.flush()


def counted(
    lines: list[str], told: Callable[[], bool] = lambda: False
) -> tuple[list[str], list[str]]:
    """What is left of a text, and a line on each kind of what is harmless in it."""
    counts: dict[str, int] = {}
    folder = Fold(told, counts)
    left = [out for line in lines for out in folder.feed(line)] + folder.flush()
    return left, [_said(words, count) for words, count in counts.items()]


def _said(words: str, count: int) -> str:
    return f"harmless: {words} ({count} line{'s' if count > 1 else ''})"


def _goes_on(before: str, text: str) -> bool:
    """Whether `text` belongs to the traceback whose last line is `before`."""
    if _in_frames(before):  # up to the exception's line, which is not indented
        return not text.startswith(_TRACEBACK)
    chained = before.startswith(_CHAIN)
    if not before.strip() or chained:
        return not text.strip() or text.startswith((*_CHAIN, _TRACEBACK))
    return not text.strip()


def _in_frames(before: str) -> bool:
    return before.startswith((_TRACEBACK, " ", "\t"))


def _of_traceback(block: list[str], prefix: str) -> str:
    last = _bare(block[-1])
    agent = any(
        "torch/distributed/elastic" in line or "distributed/run.py" in line for line in block
    )
    if agent and "SignalException: " in last:
        return _TOLD
    if agent and ("RendezvousConnectionError" in last or "DistNetworkError" in last):
        return _STORE
    if agent and "ChildFailedError" in last:
        return _OWN
    if broken_by_peer(last):
        rank = prefix.strip("[]:")
        return _PEER.format(f"rank {rank.removeprefix('rank')} " if rank else "a rank ")
    return ""


def _bare(line: str) -> str:
    match = _RANK.match(line)
    return match[2] if match else line
