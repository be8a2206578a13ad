"""A start in words: how far the script got, why no further, and what it wants of the network."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from ...base.amounts import size
from ...sandbox.events import Event, of
from ...sandbox.watch import Ended, Limits
from .came import broken_off

# Names of exceptions that speak of the network, as Python or the libraries print them.
_CUT = re.compile(
    r"ContentTooShort|IncompleteRead|ChunkedEncoding|Connection(?:Reset|Aborted|Error|Broken)"
    r"|RemoteDisconnected|ProtocolError|ReadTimeout|ReadError|Timeout|timed out|BrokenPipe"
)
_UNREACHED = re.compile(
    r"URLError|ConnectionRefused|ConnectError|NewConnectionError|gaierror|Network is unreachable"
    r"|LocalEntryNotFound|Name or service not known|Temporary failure in name resolution"
    r"|No route to host|ProxyError|ConnectTimeout|NameResolutionError"
    r"|couldn't connect to|couldn't reach",
    re.IGNORECASE,
)
_STATUS = re.compile(r"HTTP Error (\d{3})|\b(\d{3}) (?:Client|Server) Error")
_GPU = re.compile(r"cuda|gpu|nvidia|nccl|rocm|\bhip\b|\bxpu\b|\bmps\b|accelerator", re.IGNORECASE)
_MEMORY = re.compile(r"MemoryError|Cannot allocate memory|DefaultCPUAllocator|bad_alloc")
_STOPS = {
    "batch and forward": "first batch and forward",
    "backward": "first backward",
    "step": "first step of an optimizer",
}
# What torchrun or srun would have set; `sandbox.inside.devices` sets it.
_RANK = re.compile(r"\b(?:(?:LOCAL_)?(?:RANK|WORLD_SIZE)|MASTER_(?:ADDR|PORT)|SLURM_[A-Z_]+)\b")
# How native code ends where memory that it asks for is refused: abort, a failed start of a thread,
# a pointer to nothing.
_ABORTED = (-6, -11, 127, 134, 139)
_OFFLINE = re.compile(
    r"LocalEntryNotFound|OfflineModeIsEnabled|offline|couldn't connect to|couldn't reach"
    r"|outgoing traffic has been disabled|in the (?:local|disk) cache",
    re.IGNORECASE,
)
# A frame as a traceback or faulthandler prints it.
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+),? in (\S+)')
_NOT_THE_USERS = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<|/rankup/sandbox/")


@dataclass(frozen=True)
class Outcome:
    """The end of a start in words.

    Attributes:
        reached: what stopped it as it should ("first batch and forward"); empty if nothing did.
        lines: why not, and what to do.
        pretend: it may come further where it is told of a GPU, and of a launcher.
        cut: it ended because the network did.
    """

    reached: str = ""
    lines: tuple[str, ...] = ()
    pretend: bool = False
    cut: bool = False


def outcome(events: Sequence[Event], ended: Ended, limits: Limits, place: str = "") -> Outcome:
    """Judge a start by what its processes wrote and by how they ended.

    Args:
        place: where in the user's code it was when its time was over.
    """
    for event in of(events, "stop"):
        if reached := event.text("reached"):
            return Outcome(_STOPS.get(reached, reached))
    far = how_far(events)
    if unknown := next((e.text("unknown") for e in of(events, "end") if e.text("unknown")), ""):
        advice = "a newer rankup may; --no-run reads the script instead"
        return Outcome(lines=(f"this rankup cannot watch this torch ({unknown}); {advice}",))
    if ended.why == "interrupt":
        return Outcome(lines=(f"stopped; {far}",))
    if ended.why == "time":
        now = f"; it is at {place}" if place else ""
        advice = "give it more with --time, or arguments with which it comes to training sooner"
        return Outcome(lines=(f"stopped after {limits.seconds:.0f} s; {far}{now}; {advice}",))
    if ended.why == "memory":
        advice = "give it more with --memory GB, or arguments with which it needs less"
        taken = f"it took more than {size(limits.memory)} of memory; {far}"
        return Outcome(lines=(f"stopped: {taken}; {advice}",))
    if broken_off(events):
        return incomplete(events)
    end = next(iter(reversed(of(events, "end"))), None)
    if end is None:
        return Outcome(lines=(_killed(ended.code or 0, far, limits),))
    if end.text("type") not in ("", "SystemExit"):
        return _raised(end, events, limits, far)
    code = end.number("code")
    if asked := _gpu_before_batch(events):
        why = f"the script ended with code {code} after it had asked for a GPU ({asked})"
        return Outcome(lines=(why,), pretend=True)
    if code:
        return Outcome(lines=(f"the script ended with code {code}; {far}",))
    advice = "is it the script that trains, and does it need arguments?"
    missed = "did no forward after its first batch" if of(events, "batch") else "drew no batch"
    return Outcome(lines=(f"the script never trains: it ended and {missed}; {advice}",))


def incomplete(events: Sequence[Event]) -> Outcome:
    """The script did not notice that a connection broke, whatever came of that."""
    urls = ", ".join(broken_off(events))
    return Outcome(
        lines=(f"the connection broke before all of {urls} had come; run it again",), cut=True
    )


def _raised(end: Event, events: Sequence[Event], limits: Limits, far: str) -> Outcome:
    kind, error = end.text("type"), end.text("error")
    ended = f"the script ended with {kind}"
    # A launcher's variable is missed: `environ[...]`, or `int(environ.get(...))` in its last line.
    last = "\n".join([end.text("message"), *error.strip().splitlines()[-4:]])
    if kind in ("KeyError", "TypeError") and _RANK.search(last):
        return Outcome(lines=(f"{ended}: it expects to be one of several",), pretend=True)
    for event in of(events, "refused"):
        if event.text("path") and event.text("path") in end.text("message"):
            return Outcome(lines=(f"{ended}: {refused(event)}",))
    why, cut = _cause(f"{kind}: {end.text('message')}", events, limits)
    asked = _gpu_before_batch(events)
    if not why and asked and _GPU.search(error):
        return Outcome(lines=(f"{ended}; it asked for a GPU ({asked})",), pretend=True)
    return Outcome(lines=(f"{ended}; {why or far}",), cut=cut)


def _gpu_before_batch(events: Sequence[Event]) -> str:
    asked = of(events, "gpu")
    if not asked:
        return ""
    return ", ".join(filter(None, (asked[0].text("what"), asked[0].where))) or "somewhere"


def how_far(events: Sequence[Event]) -> str:
    """The last thing of the way to training that was reached."""
    steps = (
        ("batch", "it had drawn a batch, and no forward followed"),
        ("forward", "it had done a forward without a batch from a DataLoader"),
        ("gpu", "it had asked for a GPU, and drawn no batch"),
    )
    for kind, words in steps:
        if found := of(events, kind):
            place = f" ({found[0].where})" if found[0].where else ""
            return f"{words}{place}"
    urls = of(events, "url")
    if urls:
        return f"it had drawn no batch; the last download was {urls[-1].text('url')}"
    return "it had drawn no batch" if events else "its first line was not reached"


def _killed(code: int, far: str, limits: Limits) -> str:
    if code in _ABORTED:
        far = f"{far}; --memory may be too small ({size(limits.memory)} now)"
    if code == -9:
        return f"the script was killed from outside, perhaps for its memory; {far}"
    if code < 0:
        return f"the script died of signal {-code}; {far}"
    return f"the script ended with code {code} by os._exit or in native code; {far}"


def _cause(said: str, events: Sequence[Event], limits: Limits) -> tuple[str, bool]:
    """An exception in words, and True where the network broke off."""
    urls = of(events, "url")
    last = f" ({urls[-1].text('url')})" if urls else ""
    if match := _STATUS.search(said):
        status = match[1] or match[2]
        if status in ("401", "403"):
            return f"the server refuses{last}: is a token or a licence's acceptance missing?", False
        if status in ("404", "410"):
            return f"the server has no such file{last}: has it moved?", False
        return f"the server answered {status}{last}; try again later", False
    if _MEMORY.search(said):
        advice = "give it more with --memory GB"
        return f"it needs more than {size(limits.memory)} of memory; {advice}", False
    if _UNREACHED.search(said):
        host = urlsplit(urls[-1].text("url")).hostname if urls else ""
        to = f"no connection to {host} from here" if host else "the server was not reached"
        return f"{to}{last}; is there a network here, or a proxy?", True
    if _CUT.search(said) and urls:
        return f"the connection broke{last}; run it again: what came whole is kept", True
    return "", False


def users_frames(text: str) -> list[str]:
    """The frames of the user's own code in a traceback: "train.py:12 in main", in its order."""
    return [
        f"{PurePosixPath(file).name}:{line}" + ("" if name == "<module>" else f" in {name}")
        for file, line, name in _FRAME.findall(text)
        if not _NOT_THE_USERS.search(file)
    ]


def refused(event: Event) -> str:
    """Return the line for a file that the script was not allowed to change."""
    what, why = event.text("what"), event.text("why")
    return f"{what} was refused ({event.where}): {why}; give it another place for its output"


def wanted(events: Sequence[Event]) -> list[str]:
    """Return what a start without a network asked of it, and where in the user's code.

    The last of each address, since only what came last can have ended it.
    """
    return [f"{address} ({where})" if where else address for address, where in _wanted(events)]


def _wanted(events: Sequence[Event]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    urls = [event.text("url") for event in of(events, "url")]
    named = {urlsplit(url).hostname for url in urls}
    for event in of(events, "url", "connect"):
        host, port = event.text("host"), event.number("port")
        address = event.text("url") or (f"{host}:{port}" if port else host)
        if address and host not in named:
            found.pop(address, None)
            found[address] = event.where
    # Of other programs nothing is seen but the URLs that they were given.
    last = next(iter(reversed(of(events, "spawn"))), None)
    for word in last.texts("words") if last is not None else ():
        if "://" in word:
            found.setdefault(word, last.where if last is not None else "")
    return list(found.items())


def missing(
    events: Sequence[Event],
    ended: Ended,
    limits: Limits,
    brought: Mapping[str, str] | None,
    most: int = 5,
) -> list[str]:
    """Why a start without a network failed: its own error, and what it asked the network for.

    Args:
        brought: the URLs of files that the start before it has brought, with their paths; None
            where there was none that came to training.
    """
    lines: list[str] = []
    end = next((event for event in reversed(of(events, "end")) if event.text("type")), None)
    asked = _wanted(events)
    if end is not None and end.text("type") != "SystemExit":
        message = next(iter(end.text("message").strip().splitlines()), "")
        place = "".join(f" at {frame}" for frame in users_frames(end.text("error"))[-1:])
        lines.append(f"{end.text('type')}{place}: {message}".rstrip(": "))
    else:
        lines += outcome(events, ended, limits).lines
    if asked:
        lines += [f"it wanted {one}" for one in wanted(events)[-most:]]
        if path := (brought or {}).get(asked[-1][0]):
            relative = os.path.relpath(path)
            shown = path if relative.startswith("..") else relative
            lines.append(f"it downloads at every start: let it look for {shown} first")
    elif not _OFFLINE.search(" ".join(lines)):
        why = (
            "that is not why it failed" if brought is None else "the second start went another way"
        )
        lines.append(f"it asked for nothing from the network: {why}")
    return lines
