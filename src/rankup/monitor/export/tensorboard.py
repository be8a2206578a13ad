"""TensorBoard event files, written without TensorBoard.

An event file is a row of records: length, its checksum, a protocol buffer message `Event`, its
checksum (masked CRC-32C, as TensorFlow's record format has it). Of `Event` four fields are needed:
wall time (1), step (2), file version (3) and a summary (5) of tags and floats.

The run `training` has a point per step, `system` one per bin, at seconds since the begin.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...base.files import replacing
from ..recording import Band, Recording
from . import units

MOST_NODES = 16  # whose GPUs are shown one by one; of more, the lowest, mean and highest
_VERSION = b"brain.Event:2"
_MASK = 0xA282EAD8
_BLOCK = 4096  # events whose checksums are computed together


def write(recording: Recording, target: Path) -> list[Path]:
    """Write the runs `training` and `system` into a folder, as far as there is anything to show.

    Raises:
        OSError: a file cannot be written.
    """
    runs = {
        "training": (recording.steps.time, recording.steps.step, training(recording)),
        "system": (
            recording.times,
            np.rint(recording.times - recording.begin).astype(np.int64),
            system(recording),
        ),
    }
    paths = []
    for name, (times, steps, scalars) in runs.items():
        folder = target / name
        if not scalars:
            continue
        folder.mkdir(exist_ok=True)
        path = folder / f"events.out.tfevents.{int(recording.begin)}.rankup"
        with replacing(path) as file:
            for block in _records(times, steps, scalars):
                file.write(block)
        paths.append(path)
    return paths


def training(recording: Recording) -> dict[str, NDArray[np.float64]]:
    """Values of each step by tag, NaN where there is none."""
    steps = recording.steps
    valid = dict(steps.valid.tolist())
    found = {
        "loss": steps.loss,
        "valid_loss": np.array([valid.get(float(step), np.nan) for step in steps.step]),
        f"{steps.unit or 'units'}_per_s": steps.rate,
        "step_seconds": steps.seconds,
        "data_wait_share": steps.data_wait,
        "mfu": steps.mfu,
        **{f"logged/{name}": values for name, values in steps.extra.items()},
    }
    return {tag: values for tag, values in found.items() if not np.isnan(values).all()}


def system(recording: Recording) -> dict[str, NDArray[np.float64]]:
    """Values of each bin by tag, NaN where there is none."""
    found: dict[str, NDArray[np.float64]] = {}
    few = len(recording.heads) <= MOST_NODES
    gpus = [name.replace(":", "/gpu") for name in recording.gpu_names()]
    numbers = zip(recording.rank_node.tolist(), recording.ranks.tolist(), strict=True)
    ranks = [f"{recording.nodes[node]}/rank{number}" for node, number in numbers]
    for kind, bands, names, things in (
        ("gpu", recording.gpu, units.GPU, gpus),
        ("node", recording.host, units.HOST, list(recording.nodes)),
        ("rank", recording.rank, units.RANK, ranks),
    ):
        for channel, band in bands.items():
            if few:
                for at, thing in enumerate(things):
                    found[f"{kind}_{names[channel]}/{thing}"] = band.mean[:, at].astype(float)
            elif things:
                found |= _spread(f"{kind}_{names[channel]}", band)
    return {tag: values for tag, values in found.items() if not np.isnan(values).all()}


def _spread(tag: str, band: Band) -> dict[str, NDArray[np.float64]]:
    """Over all things: their lowest and highest value, and the mean of their means."""
    said = ~np.isnan(band.mean)
    count = said.sum(axis=1)
    total = np.where(said, band.mean, 0).sum(axis=1, dtype=np.float64)
    none = count == 0
    low, high = np.fmin.reduce(band.low, axis=1), np.fmax.reduce(band.high, axis=1)
    mean = np.where(none, np.nan, total / np.maximum(count, 1))
    return {
        f"{tag}/lowest": low.astype(float),
        f"{tag}/mean": mean,
        f"{tag}/highest": high.astype(float),
    }


def _records(
    times: NDArray[np.float64],
    steps: NDArray[np.int64],
    scalars: dict[str, NDArray[np.float64]],
) -> Iterator[bytes]:
    """An event file in pieces: its version, then an event per time with all that is said then."""
    first = float(times[0]) if len(times) else 0.0
    yield _framed([b"\x09" + struct.pack("<d", first) + _field(3, _VERSION)])
    heads = [_field(1, tag.encode(errors="replace")) + b"\x15" for tag in scalars]
    table = np.stack(list(scalars.values()), axis=1)
    said = ~np.isnan(table)
    floats = table.astype("<f4")
    for begin in range(0, len(times), _BLOCK):
        events = []
        for at in range(begin, min(begin + _BLOCK, len(times))):
            values = [
                _field(1, heads[tag] + floats[at, tag].tobytes())
                for tag in np.flatnonzero(said[at])
            ]
            if values:
                # A step is a signed number of 64 bits: ours are never below zero.
                moment = b"\x09" + struct.pack("<d", times[at]) + b"\x10" + _varint(int(steps[at]))
                events.append(moment + _field(5, b"".join(values)))
        if events:
            yield _framed(events)


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes in a message."""
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _framed(messages: list[bytes]) -> bytes:
    lengths = [struct.pack("<Q", len(message)) for message in messages]
    before, after = _checksums(lengths), _checksums(messages)
    parts = zip(lengths, before, messages, after, strict=True)
    return b"".join(piece for record in parts for piece in record)


def _checksums(messages: list[bytes]) -> list[bytes]:
    """The masked CRC-32C of each, little-endian; those of one length are computed together."""
    found = [b""] * len(messages)
    by_length: dict[int, list[int]] = {}
    for at, message in enumerate(messages):
        by_length.setdefault(len(message), []).append(at)
    table = _crc_table()
    for length, places in by_length.items():
        text = b"".join(messages[at] for at in places)
        bytes_ = np.frombuffer(text, np.uint8).reshape(len(places), length)
        crc = np.full(len(places), 0xFFFFFFFF, np.uint32)
        for column in np.ascontiguousarray(bytes_.T):
            crc = table[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
        crc = ~crc
        masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK)
        for at, value in zip(places, masked.astype("<u4"), strict=True):
            found[at] = value.tobytes()
    return found


@cache
def _crc_table() -> NDArray[np.uint32]:
    """Of the Castagnoli polynomial, bits reversed."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        odd = (table & np.uint32(1)).astype(bool)
        table = (table >> np.uint32(1)) ^ np.where(odd, np.uint32(0x82F63B78), np.uint32(0))
    return table
