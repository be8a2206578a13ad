"""The collectives that this rank waits in, by torch's flight recorder and by its own stack.

The recorder keeps the last collectives of every group, NCCL's and, in newer torch, gloo's. It knows
nothing of gloo's sends and receives: those are told by where the main thread stands.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from .state import Call, reading_frames

_SIZE = "500"  # entries; reading them takes milliseconds
_WAITING = (
    os.path.join("torch", "distributed", "distributed_c10d.py"),
    os.path.join("torch", "distributed", "_functional_collectives.py"),
    os.path.join("torch", "distributed", "pipelining", ""),
)
_TYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Long": "int64",
    "Int": "int32",
    "Byte": "uint8",
}
# A group for work beside the training: what waits in it is no hang of the run.
APART = "rankup_checkpoint"
_WRAPPERS = ("c10d_logger.py", "typing_extensions.py")


def prepare() -> None:
    """Switch the flight recorder on; before the first process group is made."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    renamed = (major, minor) >= (2, 9)
    name = "TORCH_FR_BUFFER_SIZE" if renamed else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    os.environ.setdefault(name, _SIZE)


def counts() -> dict[str, int]:
    """Group's name -> collectives started in it on this rank."""
    numbers: dict[str, int] = {}
    for group in list(dist.distributed_c10d._world.pg_map):
        with contextlib.suppress(RuntimeError):  # no backend yet, or on its way out
            number = group._get_sequence_number_for_group()  # type: ignore[attr-defined]
            numbers[str(group.group_name)] = number
    return numbers


def timeout(group: dist.ProcessGroup | None) -> float:
    """Seconds that a collective of the group may take at present; 0.0 where not known."""
    for device in ("cuda", "cpu"):
        # A group without this device, or a backend that does not say.
        with contextlib.suppress(RuntimeError, AttributeError):
            options = group._get_backend(torch.device(device)).options  # type: ignore[union-attr]
            return float(options._timeout.total_seconds())
    return 0.0


def _has_ended(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def pending(after: float) -> tuple[Call, ...]:
    """Collectives that have begun and not ended, the oldest first.

    Args:
        after: seconds since 1970; what began before belongs to a group that is gone.
    """
    entries = list(_entries())
    # Sends and receives of one batch are recorded one by one, but only the batch is seen to end.
    ended = {
        (tuple(entry["process_group"]), entry.get("p2p_seq_id"))
        for entry in entries
        if "coalesced" in entry["profiling_name"] and _has_ended(entry)
    }
    calls = [
        _call(entry)
        for entry in entries
        if not _has_ended(entry)
        and entry["time_created_ns"] / 1e9 >= after
        and entry["process_group"][1] != APART
        and not (
            entry.get("is_p2p")
            and (tuple(entry["process_group"]), entry.get("p2p_seq_id")) in ended
        )
    ]
    return tuple(sorted(calls, key=lambda call: call.since))


@dataclass
class Blocked:
    """How long the main thread has stood at one place in torch.distributed."""

    place: tuple[int, int] = (0, 0)
    since: float = 0.0

    def look(
        self, frame: FrameType | None, now: float, timeout: float, least: float = 0.0
    ) -> tuple[Call, ...]:
        """The call it stands in, as far as its frames tell; none while it is elsewhere.

        Args:
            least: seconds that it must have stood there. The variables of its frame are left alone
                until then: to read them is to keep what is in them.
        """
        inside = _waiting_in(frame)
        if frame is None or inside is None:
            self.place = (0, 0)
            return ()
        place = (id(frame), frame.f_lasti)
        if place != self.place:
            self.place, self.since = place, now
        if now - self.since < least:
            return ()
        return (_of_frame(inside, self.since, timeout),)


def in_store(frame: FrameType | None) -> bool:
    """Whether the main thread may be waiting in the store, as where a group is made."""
    inside = _waiting_in(frame)
    return inside is not None and (
        "new" in inside.f_code.co_name or "store" in inside.f_code.co_name
    )


def _entries() -> Iterator[Mapping[str, Any]]:
    import torch._C._distributed_c10d as c10d

    # NCCL has a recorder of its own beside that of the other backends.
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            yield from json.loads(dump(True, False)).get("entries", [])


def _call(entry: Mapping[str, Any]) -> Call:
    name, label = entry["process_group"]
    p2p = bool(entry.get("is_p2p"))
    shapes, types = entry.get("input_sizes", []), entry.get("input_dtypes", [])
    tensors = ", ".join(f"{_type(t)} {list(s)}" for t, s in zip(types, shapes, strict=False))
    return Call(
        operation=entry["profiling_name"].partition(":")[2] or entry["profiling_name"],
        group=name,
        label=_label(name, label),
        ranks=_ranks(name),
        number=-1 if p2p else entry["collective_seq_id"],
        tensors=tensors,
        since=entry["time_created_ns"] / 1e9,
        timeout=entry["timeout_ms"] / 1e3,
    )


def _type(name: str) -> str:
    """torch's name of a type for the recorder's, which is C++'s."""
    return _TYPES.get(name, name.lower())


def _label(name: str, label: str) -> str:
    if label in ("default_pg", ""):
        return "all ranks" if label else f"group {name}"
    return label.removeprefix("mesh_")


def _ranks(name: str) -> tuple[int, ...]:
    for group in list(dist.distributed_c10d._world.pg_map):
        if group.group_name == name:
            return tuple(dist.get_process_group_ranks(group))
    return ()


def _waiting_in(frame: FrameType | None) -> FrameType | None:
    """The frame of torch.distributed's function that the innermost frames belong to."""
    found = None
    with reading_frames():
        while frame is not None:
            file = frame.f_code.co_filename
            if any(part in file for part in _WAITING):
                found = frame
            elif not file.endswith(_WRAPPERS):
                break
            frame = frame.f_back
    return found


def _of_frame(frame: FrameType, since: float, timeout: float) -> Call:
    with reading_frames():
        local = frame.f_locals
    peers = [int(v) for k in ("src", "dst") if isinstance(v := local.get(k), int)]
    group = local.get("group")
    name = getattr(group, "group_name", "") or ""
    return Call(
        operation=frame.f_code.co_name,
        group=name,
        label="",
        ranks=tuple(sorted({dist.get_rank(), *peers})) if peers else (),
        number=-1,
        tensors="",
        since=since,
        timeout=timeout,
    )
