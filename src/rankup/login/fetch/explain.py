"""A start in words: how far the script got, why no further, and what it wants of the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from ...base.amounts import size
from ...sandbox.events import Event, of
from ...sandbox.watch import Ended, Limits
from .came import broken_off

_STATUS = r"HTTP Error {0}|\b{0} (?:Client|Server) Error"
# Words of an exception, as Python or the libraries print them; how that reads; and True where a
# file may not be whole for it. The first that is found counts.
_CAUSES = (
    (
        _STATUS.format("40[13]"),
        "the server refuses: is a token or a licence's acceptance missing?",
        False,
    ),
    (_STATUS.format("4(?:04|10)"), "the server has no such file: has it moved?", False),
    (_STATUS.format(r"\d{3}"), "the server is busy, or broken; try again later", False),
    (
        r"MemoryError|Cannot allocate memory|DefaultCPUAllocator|bad_alloc",
        "it needs more memory; give it more with --memory GB",
        False,
    ),
    (
        r"URLError|ConnectionRefused|ConnectError|NewConnectionError|gaierror|LocalEntryNotFound"
        r"|Network is unreachable|Name or service not known|Temporary failure in name resolution"
        r"|No route to host|ProxyError|ConnectTimeout|NameResolutionError"
        r"|couldn't connect to|couldn't reach",
        "no connection; is there a network here, or a proxy?",
        True,
    ),
    (
        r"ContentTooShort|IncompleteRead|ChunkedEncoding|Connection(?:Reset|Aborted|Error|Broken)"
        r"|RemoteDisconnected|ProtocolError|ReadTimeout|ReadError|Timeout|timed out|BrokenPipe",
        "the connection broke; run it again: what came whole is kept",
        True,
    ),
)
_FULL = re.compile("No space left on device|Disk quota exceeded")
_GPU = re.compile(r"cuda|gpu|nvidia|nccl|rocm|\bhip\b|\bxpu\b|\bmps\b|accelerator", re.IGNORECASE)
# What torchrun or srun would have set; `sandbox.inside.devices` sets it.
_RANK = re.compile(r"\b(?:(?:LOCAL_)?(?:RANK|WORLD_SIZE)|MASTER_(?:ADDR|PORT)|SLURM_[A-Z_]+)\b")
# How native code ends where memory that it asks for is refused: abort, a failed start of a thread,
# a pointer to nothing. The kernel kills where there is none left.
_ABORTED = (-6, -9, -11, 127, 134, 139)
# A frame as a traceback or faulthandler prints it.
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+),? in (\S+)')
_NOT_THE_USERS = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<|/rankup/sandbox/")


@dataclass(frozen=True)
class Outcome:
    """The end of a start in words.

    Attributes:
        reached: what stopped it as it should ("first batch and forward"); empty if nothing did.
        why: why not, and what to do.
        pretend: it may come further where it is told of a GPU, and of a launcher.
        cut: it ended because the network did.
    """

    reached: str = ""
    why: str = ""
    pretend: bool = False
    cut: bool = False


def outcome(events: Sequence[Event], ended: Ended, limits: Limits, place: str = "") -> Outcome:
    """Judge a start by what its processes wrote and by how they ended.

    Args:
        place: where in the user's code it was when its time was over.
    """
    for event in of(events, "stop"):
        if reached := event.text("reached"):
            return Outcome(f"first {reached}")
    far = how_far(events)
    if unknown := next((e.text("unknown") for e in of(events, "end") if e.text("unknown")), ""):
        advice = "a newer rankup may; --no-run reads the script instead"
        return Outcome(why=f"this rankup cannot watch this torch ({unknown}); {advice}")
    if ended.why == "interrupt":
        return Outcome(why=f"stopped; {far}")
    if ended.why == "time":
        now = f"; it is at {place}" if place else ""
        advice = "give it more with --time, or arguments with which it comes to training sooner"
        return Outcome(why=f"stopped after {limits.seconds:.0f} s; {far}{now}; {advice}")
    if ended.why == "memory":
        advice = "give it more with --memory GB, or arguments with which it needs less"
        taken = f"it took more than {size(limits.memory)} of memory; {far}"
        return Outcome(why=f"stopped: {taken}; {advice}")
    if broken_off(events):
        return incomplete(events)
    end = next(iter(reversed(of(events, "end"))), None)
    if end is None:
        code = ended.code or 0
        how = f"died of signal {-code}" if code < 0 else f"ended with code {code} in native code"
        memory = f"; perhaps for its memory ({size(limits.memory)} now, --memory)"
        return Outcome(why=f"the script {how}; {far}{memory if code in _ABORTED else ''}")
    if end.text("type") not in ("", "SystemExit"):
        return _raised(end, events, far)
    code = end.number("code")
    if asked := _asked_for_gpu(events):
        why = f"the script ended with code {code} after it had asked for a GPU ({asked})"
        return Outcome(why=why, pretend=True)
    if code:
        return Outcome(why=f"the script ended with code {code}; {far}")
    advice = "is it the script that trains, and does it need arguments?"
    missed = "did no forward after its first batch" if of(events, "batch") else "drew no batch"
    return Outcome(why=f"the script never trains: it ended and {missed}; {advice}")


def incomplete(events: Sequence[Event]) -> Outcome:
    """The script did not notice that a connection broke, whatever came of that."""
    urls = ", ".join(broken_off(events))
    return Outcome(
        why=f"the connection broke before all of {urls} had come; run it again", cut=True
    )


def _raised(end: Event, events: Sequence[Event], far: str) -> Outcome:
    kind, error = end.text("type"), end.text("error")
    ended = f"the script ended with {kind}"
    # A launcher's variable is missed: `environ[...]`, or `int(environ.get(...))` in its last line.
    last = "\n".join([end.text("message"), *error.strip().splitlines()[-4:]])
    if kind in ("KeyError", "TypeError") and _RANK.search(last):
        return Outcome(why=f"{ended}: it expects to be one of several", pretend=True)
    network = of(events, "url", "connect")
    for pattern, why, cut in _CAUSES:
        said = re.search(pattern, f"{kind}: {end.text('message')}", re.IGNORECASE)
        if said and (network or not cut):
            url = f" ({urls[-1].text('url')})" if (urls := of(events, "url")) else ""
            return Outcome(why=f"{ended}; {why}{url}", cut=cut)
    asked = _asked_for_gpu(events)
    if asked and _GPU.search(error):
        return Outcome(why=f"{ended}; it asked for a GPU ({asked})", pretend=True)
    return Outcome(why=f"{ended}; {far}")


def _asked_for_gpu(events: Sequence[Event]) -> str:
    asked = of(events, "gpu")
    return " ".join((asked[0].text("what"), asked[0].where)).strip() if asked else ""


def no_room(events: Iterable[Event], full: Sequence[Path]) -> str:
    """Return that a disk is full, which one, and what to do; empty where none is.

    Args:
        full: folders on full disks, as far as they are known. A quota shows in the error alone.
    """
    if not full and not any(_FULL.search(event.text("message")) for event in of(events, "end")):
        return ""
    where = " and ".join(map(str, full)) or "the folder, or of the quota, that it writes to"
    return f"no room left on the disk of {where}: make room there, and run it again"


def how_far(events: Sequence[Event]) -> str:
    """Return the last thing of the way to training that was reached."""
    steps = (
        ("batch", "it had drawn a batch, and no forward followed"),
        ("forward", "it had done a forward without a batch from a DataLoader"),
        ("gpu", "it had asked for a GPU, and drawn no batch"),
    )
    for kind, words in steps:
        if found := of(events, kind):
            return f"{words} ({found[0].where})" if found[0].where else words
    if urls := of(events, "url"):
        return f"it had drawn no batch; the last download was {urls[-1].text('url')}"
    return "it had drawn no batch" if events else "its first line was not reached"


def users_frames(text: str) -> list[str]:
    """Return the frames of the user's own code in a traceback: "train.py:12 in main", in order."""
    return [
        f"{PurePosixPath(file).name}:{line}" + ("" if name == "<module>" else f" in {name}")
        for file, line, name in _FRAME.findall(text)
        if not _NOT_THE_USERS.search(file)
    ]


def wanted(events: Sequence[Event]) -> dict[str, str]:
    """Return the addresses that a start without a network asked for, and where in the user's code.

    The last of each address, since only what came last can have ended it.
    """
    found: dict[str, str] = {}
    named = {urlsplit(event.text("url")).hostname for event in of(events, "url")}
    for event in of(events, "url", "connect"):
        host, port = event.text("host"), event.number("port")
        address = event.text("url") or (f"{host}:{port}" if port else host)
        if address and host not in named:
            found.pop(address, None)
            found[address] = event.where
    # Of other programs nothing is seen but the URLs that they were given.
    for event in of(events, "spawn")[-1:]:
        for word in event.texts("words"):
            if "://" in word:
                found.setdefault(word, event.where)
    return found


def at(address: str, where: str) -> str:
    """Return an address of `wanted` with its place, as it is shown."""
    return f"{address} ({where})" if where else address


def missing(
    events: Sequence[Event], ended: Ended, limits: Limits, brought: Mapping[str, str]
) -> list[str]:
    """Return why a start without a network failed: its error, and what it wanted of the network.

    Args:
        brought: the URLs of files that the start before it has brought, with their paths.
    """
    lines: list[str] = []
    end = next((event for event in reversed(of(events, "end")) if event.text("type")), None)
    if end is not None and end.text("type") != "SystemExit":
        message = next(iter(end.text("message").strip().splitlines()), "")
        place = "".join(f" at {frame}" for frame in users_frames(end.text("error"))[-1:])
        lines.append(f"{end.text('type')}{place}: {message}".rstrip(": "))
    else:
        lines.append(outcome(events, ended, limits).why)
    asked = wanted(events)
    lines += [f"it wanted {at(*one)}" for one in [*asked.items()][-5:]]
    if asked and (path := brought.get([*asked][-1])):
        lines.append(f"it downloads at every start: let it look for {path} first")
    return lines
