"""What became of a start, in words: how far the script got, and why no further."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from .events import Event, of
from .progress import size
from .sources import broken_off
from .supervise import Ended, Limits

# Names of exceptions that speak of the network, as Python or the libraries print them.
_CUT = re.compile(
    r"ContentTooShort|IncompleteRead|ChunkedEncoding|Connection(?:Reset|Aborted|Error|Broken)"
    r"|RemoteDisconnected|ProtocolError|ReadTimeout|ReadError|Timeout|timed out|BrokenPipe"
)
_UNREACHED = re.compile(
    r"URLError|ConnectionRefused|ConnectError|NewConnectionError|gaierror|Network is unreachable"
    r"|LocalEntryNotFound|Name or service not known|Temporary failure in name resolution"
    r"|No route to host|ProxyError"
)
_STATUS = re.compile(r"HTTP Error (\d{3})|\b(\d{3}) (?:Client|Server) Error")
_GPU = re.compile(r"cuda|gpu|nvidia|nccl|rocm|\bhip\b|\bxpu\b|\bmps\b|accelerator", re.IGNORECASE)
_MEMORY = re.compile(r"MemoryError|Cannot allocate memory|DefaultCPUAllocator|bad_alloc")
_STOPS = {
    "batch and forward": "first batch and forward",
    "backward": "first backward",
    "step": "first step of an optimizer",
}
# What torchrun would have set.
_RANK = re.compile(r"KeyError: '?(?:LOCAL_)?(?:RANK|WORLD_SIZE)'?")
# A frame as a traceback or faulthandler prints it.
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+),? in (\S+)')
_NOT_THE_USERS = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<|/rankup/login/fetch/")
_OFFLINE = re.compile(r"LocalEntryNotFound|OfflineModeIsEnabled|offline", re.IGNORECASE)


@dataclass(frozen=True)
class Outcome:
    """What became of a start.

    Attributes:
        reached: what stopped it as it should ("first batch and forward"); empty if nothing did.
        lines: why not, and what to do.
        wants_gpu: it may come further where it is told that there is a GPU.
        wants_world: it may come further as the one rank of a world.
        cut: it ended because the network did.
    """

    reached: str = ""
    lines: tuple[str, ...] = ()
    wants_gpu: bool = False
    wants_world: bool = False
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
    return _ended_itself(events, ended, limits, far)


def incomplete(events: Sequence[Event]) -> Outcome:
    """The script did not notice that a connection broke, whatever came of that."""
    urls = ", ".join(broken_off(events))
    return Outcome(
        lines=(f"the connection broke before all of {urls} had come; run it again",), cut=True
    )


def _ended_itself(events: Sequence[Event], ended: Ended, limits: Limits, far: str) -> Outcome:
    end = next(iter(reversed(of(events, "end"))), None)
    if end is None:
        return Outcome(lines=(_killed(ended.code or 0, far),))
    if end.text("type") not in ("", "SystemExit"):
        return _raised(end, events, limits, far)
    code = end.number("code")
    if asked := _gpu_before_batch(events):
        why = f"the script ended with code {code} after it had asked for a GPU ({asked})"
        return Outcome(lines=(why,), wants_gpu=True)
    if code:
        return Outcome(lines=(f"the script ended with code {code}; {far}",))
    advice = "is it the script that trains, and does it need arguments?"
    missed = "did no forward after its first batch" if of(events, "batch") else "drew no batch"
    return Outcome(lines=(f"the script never trains: it ended and {missed}; {advice}",))


def _raised(end: Event, events: Sequence[Event], limits: Limits, far: str) -> Outcome:
    kind, error = end.text("type"), end.text("error")
    ended = f"the script ended with {kind}"
    if _RANK.fullmatch(f"{kind}: {end.text('message')}"):
        return Outcome(lines=(f"{ended}: it expects to be one of several",), wants_world=True)
    why, cut = _cause(f"{kind}: {end.text('message')}", events, limits)
    asked = _gpu_before_batch(events)
    if not why and asked and _GPU.search(error):
        return Outcome(lines=(f"{ended}; it asked for a GPU ({asked})",), wants_gpu=True)
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
        ("walk", "it was drawing all samples, which are downloaded one by one"),
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


def _killed(code: int, far: str) -> str:
    if code == -9:
        return f"the script was killed from outside, perhaps for its memory; {far}"
    if code < 0:
        return f"the script died of signal {-code}; {far}"
    return f"the script ended with code {code} by os._exit or in native code; {far}"


def _cause(said: str, events: Sequence[Event], limits: Limits) -> tuple[str, bool]:
    """What rankup makes of an exception, and whether the network broke off."""
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
    if _CUT.search(said) and urls:
        return f"the connection broke{last}; run it again: what came whole is kept", True
    if _UNREACHED.search(said):
        return f"the server was not reached{last}; is there a network here, or a proxy?", True
    return "", False


def wanted(events: Sequence[Event]) -> list[str]:
    """What a start without a network asked the network for, and where in the user's code.

    The last of each address, since only what came last can have ended it.
    """
    found: dict[str, str] = {}
    urls = [event.text("url") for event in of(events, "url")]
    named = {urlsplit(url).hostname for url in urls}
    for event in of(events, "url", "connect"):
        host, port = event.text("host"), event.number("port")
        address = event.text("url") or (f"{host}:{port}" if port else host)
        if address and host not in named:
            found.pop(address, None)
            found[address] = f"{address} ({event.where})" if event.where else address
    return list(found.values())


def missing(events: Sequence[Event], ended: Ended, limits: Limits, most: int = 5) -> list[str]:
    """Why a start without a network failed: its own error, and what it asked the network for."""
    lines: list[str] = []
    end = next((event for event in reversed(of(events, "end")) if event.text("type")), None)
    asked = wanted(events)
    if end is not None and end.text("type") != "SystemExit":
        message = next(iter(end.text("message").strip().splitlines()), "")
        place = _raised_at(end.text("error"))
        lines.append(f"{end.text('type')}{place}: {message}".rstrip(": "))
    else:
        lines += outcome(events, ended, limits).lines
    if asked:
        lines += [f"it wanted {one}" for one in asked[-most:]]
    elif end is not None and end.text("type") == "FileExistsError":
        lines.append("it does not start twice: what its first start has made is in its way")
    elif not _OFFLINE.search(" ".join(lines)):
        lines.append("it asked for nothing from the network: the second start went another way")
    return lines


def _raised_at(error: str) -> str:
    frames = users_frames(error)
    return f" at {frames[-1]}" if frames else ""


def users_frames(text: str) -> list[str]:
    """The frames of the user's own code in a traceback: "train.py:12 in main", in its order."""
    return [
        f"{PurePosixPath(file).name}:{line}" + ("" if name == "<module>" else f" in {name}")
        for file, line, name in _FRAME.findall(text)
        if not _NOT_THE_USERS.search(file)
    ]
