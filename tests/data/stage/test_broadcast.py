"""A source read once by several nodes together: who is gone, silent or wrong makes it slower only.

The nodes are threads, and processes in the last test, each with a copy of its own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import xxhash

from rankup.base.errors import UserError
from rankup.data.stage import broadcast, core, meeting, peers, pieces, place, wire
from rankup.data.stage.part import Part
from rankup.data.stage.pieces import Piece
from rankup.data.stage.plan import planned
from tests.data import made

from .made import until

SMALL = 4096  # bytes of a piece, so that a small pack has many


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", SMALL)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A pack of two files and some 35 pieces, with hashes."""
    root = tmp_path / "pack"
    train, valid = made.samples(200, most=1000), made.samples(90, seed=1, most=1000)
    made.pack(root, {"train": train, "valid": valid})
    return root


@dataclass
class Node:
    """A node of a step: what it copies, has read from the source, and has said."""

    number: int
    nodes: int
    source: Path
    folder: Path  # seen by all
    root: Path
    read: list[tuple[int, int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        return {
            "SLURM_NODEID": str(self.number),
            "SLURM_STEP_NUM_NODES": str(self.nodes),
            "SLURM_STEP_NUM_TASKS": str(self.nodes),
            "SLURM_JOB_ID": "17",
            "SLURM_STEP_ID": "0",
            "SLURMD_NODENAME": f"n{self.number}",
            "RANKUP_RUN_DIR": str(self.folder),
        }

    def stage(
        self,
        *,
        meet: float = 60.0,
        linger: float = 5.0,
        broken: Callable[[Part], None] | None = None,
    ) -> None:
        """Make the copy, as `core.stage` does."""
        plan = planned(self.source, 1.0)
        copy = Part(plan.index, self.source, self.root / "pack", plan.sizes, plan.cuts)
        read = copy.read

        def counted(piece: Piece, into: memoryview) -> memoryview:
            self.read.append((piece.file, piece.offset))
            return read(piece, into)

        copy.read = counted  # type: ignore[method-assign]
        if broken is not None:
            broken(copy)
        together = broadcast.together(
            self.source, self.environment(), self.said.append, meet=meet, linger=linger
        )
        with together as fill:
            copy.begin()
            fill(copy, lambda done, samples: None)
            copy.finish(2)

    def whole(self) -> bool:
        """Whether the copy is the source."""
        names = [file.name for file in self.source.glob("*.bin")]
        return len(names) == 2 and all(
            (self.root / "pack" / name).read_bytes() == (self.source / name).read_bytes()
            for name in names
        )


def _nodes(count: int, source: Path, tmp_path: Path) -> list[Node]:
    found = []
    for number in range(count):
        root = tmp_path / f"n{number}"
        root.mkdir()
        found.append(Node(number, count, source, tmp_path, root))
    return found


def _pieces(source: Path) -> list[tuple[int, int]]:
    return [(one.file, one.offset) for one in pieces.pieces(planned(source, 1.0).cuts)]


def _all(nodes: list[Node], run: Callable[[Node], None] = Node.stage) -> list[BaseException | None]:
    with ThreadPoolExecutor(len(nodes)) as pool:
        futures = [pool.submit(run, node) for node in nodes]
        return [future.exception(timeout=200) for future in futures]


def test_the_nodes_read_each_piece_once_in_all(source: Path, tmp_path: Path) -> None:
    nodes = _nodes(3, source, tmp_path)
    assert _all(nodes) == [None] * 3
    assert all(node.whole() for node in nodes)
    assert sorted(one for node in nodes for one in node.read) == sorted(_pieces(source))
    shares = [len(node.read) for node in nodes]
    assert max(shares) - min(shares) <= 1
    assert [line for node in nodes for line in node.said] == []
    assert not list(tmp_path.glob(".rankup-stage*")), "the tokens are gone"


def test_who_does_not_come_is_not_waited_for_longer_than_said(source: Path, tmp_path: Path) -> None:
    node, _ = _nodes(2, source, tmp_path)
    assert _all([node], lambda node: node.stage(meet=0.2, linger=60.0)) == [None]
    assert node.whole()
    [line] = node.said
    assert line.startswith("node n0: node 2 of 2 does not give")
    assert "has not come" in line
    assert line.endswith(f"are read from {source}")


def test_a_node_that_has_a_copy_is_not_waited_for(source: Path, tmp_path: Path) -> None:
    nodes = _nodes(3, source, tmp_path)

    def run(node: Node) -> None:
        if node.number != 1:
            return node.stage()
        with broadcast.together(source, node.environment(), node.said.append):
            return None  # `stage` has found one

    assert _all(nodes, run) == [None] * 3
    assert nodes[0].whole()
    assert nodes[2].whole()
    assert "it copies nothing now" in nodes[0].said[0]
    assert not list(tmp_path.glob(".rankup-stage*"))


def test_a_node_that_fails_does_not_stop_the_others(source: Path, tmp_path: Path) -> None:
    nodes = _nodes(3, source, tmp_path)

    def fails(copy: Part) -> None:
        def write(piece: Piece, data: memoryview | bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        copy.write = write  # type: ignore[method-assign]

    errors = _all(nodes, lambda node: node.stage(broken=fails if node.number == 1 else None))
    assert [type(error) for error in errors] == [type(None), OSError, type(None)]
    assert isinstance(errors[1], OSError)
    assert errors[1].errno == errno.ENOSPC, "its own fault, and no peer's"
    assert nodes[0].whole()
    assert nodes[2].whole()
    assert "node n1 does not give" in nodes[0].said[0]


# --- a peer that is not what it should be


@contextlib.contextmanager
def _listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on this host that does `serve` with each who calls."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                caller, _ = listening.accept()
            except OSError:
                return
            with caller, contextlib.suppress(OSError):
                serve(caller)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def _pretend(node: Node, port: int, token: bytes, tmp_path: Path, **others: Any) -> None:
    """Node 1 says that it listens at a port."""
    of = broadcast.step(node.environment())
    assert of is not None
    folder = of.folder / place.keyed(node.source)
    folder.mkdir(0o700, parents=True, exist_ok=True)
    of.folder.chmod(0o700)
    plan = planned(node.source, 1.0)
    copy = Part(plan.index, node.source, tmp_path / "nowhere", plan.sizes, plan.cuts)
    filling = peers.Filling(of, folder, copy, lambda *_: None, node.said.append)
    meeting.publish(of, folder, filling._plan, port, token)
    if others:
        path = folder / f"node-{node.number}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **others}))
    (folder / f"done-{node.number}").touch()


def _alone_with(node: Node) -> None:
    assert _all([node], lambda one: one.stage(meet=2.0)) == [None]
    assert node.whole()
    assert sorted(node.read) == sorted(_pieces(node.source))


def _rubbish(caller: socket.socket) -> None:
    caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20)
    caller.recv(1 << 16)


def _hangs_up(caller: socket.socket) -> None:
    caller.sendall(bytes(32))


def _mute(caller: socket.socket) -> None:
    while caller.recv(1 << 16):  # until it is given up
        pass


@pytest.mark.parametrize(
    ("serve", "why"),
    [
        (_rubbish, "it does not know the token"),
        (_hangs_up, "it hung up"),
        (_mute, "timed out"),
    ],
)
def test_what_does_not_know_the_token_gives_nothing(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[[socket.socket], None],
    why: str,
) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE", 0.3 if serve is _mute else 60.0)
    node, peer = _nodes(2, source, tmp_path)
    with _listening(serve) as port:
        _pretend(peer, port, bytes(32), tmp_path)
        _alone_with(node)
    [line] = [one for one in node.said if "does not give" in one]
    assert why in line
    assert line.startswith("node n0: node n1 does not give")


@contextlib.contextmanager
def _peer(
    node: Node, tmp_path: Path, lookup: Callable[[int, float], tuple[Path, int, int, int] | None]
) -> Iterator[None]:
    """Node 1 keeps to the protocol, and gives what `lookup` says."""
    server = wire.Server(b"k" * 32, lookup, 2)
    try:
        _pretend(node, server.port, b"k" * 32, tmp_path)
        yield
    finally:
        server.close()


@pytest.mark.parametrize("how", ["other bytes", "other digest", "other length", "gone", "cut"])
def test_what_a_peer_sends_is_believed_only_when_it_is_what_was_packed(
    source: Path, tmp_path: Path, how: str
) -> None:
    node, peer = _nodes(2, source, tmp_path)
    every = pieces.pieces(planned(source, 1.0).cuts)
    zeros = tmp_path / "zeros"
    zeros.write_bytes(bytes(SMALL))
    good = 3  # the second of its pieces is given as it should be

    def lookup(number: int, seconds: float) -> tuple[Path, int, int, int] | None:
        piece = every[number]
        file = source / ("train.bin" if piece.file == 0 else "valid.bin")
        data = file.read_bytes()[piece.offset : piece.offset + piece.length]
        right = xxhash.xxh3_64_intdigest(data)
        if number <= good:
            return file, piece.offset, piece.length, right
        if how == "other bytes":
            zeroed = xxhash.xxh3_64_intdigest(bytes(piece.length))
            return zeros, 0, piece.length, zeroed
        if how == "other digest":
            return file, piece.offset, piece.length, right ^ 1
        if how == "other length":
            return file, piece.offset, piece.length - 1, right
        if how == "cut":
            return zeros, 100, piece.length, right
        raise KeyError(number)

    whys = {
        "other bytes": "it sent other bytes than were packed",
        "other digest": "are not those it sent",
        "other length": "bytes for piece 5 of",
        "gone": "it has failed itself",
        "cut": "it hung up",
    }
    with _peer(peer, tmp_path, lookup):
        assert _all([node]) == [None]
    assert node.whole()
    [line] = [one for one in node.said if "does not give" in one]
    assert whys[how] in line
    given = [(every[number].file, every[number].offset) for number in (1, 3)]
    assert not set(given) & set(node.read), "what it gave before was right"
    assert len(node.read) == len(every) - 2


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"plan": 1', "\0"])
def test_what_a_peer_says_that_makes_no_sense_is_no_traceback(
    source: Path, tmp_path: Path, text: str
) -> None:
    node, peer = _nodes(2, source, tmp_path)
    _pretend(peer, 1, bytes(32), tmp_path)
    of = broadcast.step(peer.environment())
    assert of is not None
    (of.folder / place.keyed(source) / "node-1.json").write_text(text)
    _alone_with(node)
    assert "node 2 of 2 does not give" in node.said[0]


def test_a_stranger_gets_nothing(source: Path, tmp_path: Path) -> None:
    asked = []

    def lookup(number: int, seconds: float) -> tuple[Path, int, int, int] | None:
        asked.append(number)
        return source / "train.bin", 0, 10, 0

    server = wire.Server(b"k" * 32, lookup, 2)
    try:
        for token, number in ((b"x" * 32, 1), (b"k" * 32, 2)):  # there is no node 2
            with (
                pytest.raises((OSError, wire.Rubbish)),
                wire.connected(["127.0.0.1"], server.port, token, number) as get,
            ):
                get(0, memoryview(bytearray(10)))
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as caller:
            seen = caller.recv(32)
            caller.sendall(b"\1\0\0\0" + bytes(64) + bytes(8))
            with contextlib.suppress(ConnectionResetError):
                assert caller.recv(100) == b"", "it hangs up"
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as caller:
            assert caller.recv(32) != seen, "no two greetings are the same"
    finally:
        server.close()
    assert asked == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=60)


def test_strangers_hold_no_more_than_a_few_threads(source: Path) -> None:
    data = (source / "train.bin").read_bytes()[:10]
    found = source / "train.bin", 0, 10, xxhash.xxh3_64_intdigest(data)
    server = wire.Server(b"k" * 32, lambda number, seconds: found, 2)
    before = threading.active_count()
    try:
        with contextlib.ExitStack() as stack:
            get = stack.enter_context(wire.connected(["127.0.0.1"], server.port, b"k" * 32, 1))
            for _ in range(300):
                caller = socket.create_connection(("127.0.0.1", server.port), 60)
                stack.enter_context(caller)
                with contextlib.suppress(OSError):
                    caller.recv(1)  # greeted, pushed out or refused
            until(lambda: threading.active_count() - before < 100)
            assert get(0, memoryview(bytearray(10))) == data  # they push out strangers alone
    finally:
        server.close()


def test_a_byte_now_and_then_does_not_go_on_for_ever(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE", 0.3)
    server = wire.Server(b"k" * 32, lambda number, seconds: None, 2)

    def ended(caller: socket.socket) -> bool:
        try:
            caller.sendall(b"x")
        except OSError:
            return True
        return False

    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as caller:
            caller.recv(32)
            until(lambda: ended(caller))
    finally:
        server.close()


def test_a_slow_piece_is_waited_for(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (source / "train.bin").read_bytes()[:10]
    asked = []

    def lookup(number: int, seconds: float) -> tuple[Path, int, int, int] | None:
        asked.append(number)
        if len(asked) < 10:  # it is not there yet
            return None
        return source / "train.bin", 0, 10, xxhash.xxh3_64_intdigest(data)

    server = wire.Server(b"k" * 32, lookup, 2)
    try:
        with wire.connected(["127.0.0.1"], server.port, b"k" * 32, 1) as get:
            assert get(0, memoryview(bytearray(10))) == data
        asked[:] = []
        monkeypatch.setattr(wire, "STALLED", 0.0)
        with (
            pytest.raises(TimeoutError, match="waited for its file system"),
            wire.connected(["127.0.0.1"], server.port, b"k" * 32, 1) as get,
        ):
            get(0, memoryview(bytearray(10)))
    finally:
        server.close()


# --- where they meet


def test_the_token_is_for_this_user_alone(source: Path, tmp_path: Path) -> None:
    nodes = _nodes(2, source, tmp_path)
    seen: list[int] = []

    def look(copy: Part) -> None:
        write = copy.write

        def some(piece: Piece, data: memoryview | bytes) -> int:
            for file in tmp_path.glob(".rankup-stage-17.0.0/*/node-*.json"):
                seen.extend(stat.S_IMODE(one.stat().st_mode) for one in (file, *file.parents[:2]))
            return write(piece, data)

        copy.write = some  # type: ignore[method-assign]

    before = os.umask(0)
    try:
        assert _all(nodes, lambda node: node.stage(broken=look)) == [None] * 2
    finally:
        os.umask(before)
    assert set(seen) == {0o600, 0o700}


@pytest.mark.parametrize("how", ["open to all", "a link", "a file"])
def test_a_folder_that_others_could_have_made_is_refused(
    source: Path, tmp_path: Path, how: str
) -> None:
    node, _ = _nodes(2, source, tmp_path)
    of = broadcast.step(node.environment())
    assert of is not None
    if how == "a file":
        of.folder.touch()
    elif how == "a link":
        (tmp_path / "theirs").mkdir(0o700)
        of.folder.symlink_to(tmp_path / "theirs")
    else:
        of.folder.mkdir()
        of.folder.chmod(0o777)
    with pytest.raises(UserError, match=r"is not a folder of yours alone"):
        node.stage()


def test_one_task_on_each_node_is_what_it_takes(source: Path, tmp_path: Path) -> None:
    node, _ = _nodes(2, source, tmp_path)
    environment = {**node.environment(), "SLURM_STEP_NUM_TASKS": "8"}
    with pytest.raises(UserError, match=r"8 tasks on 2 nodes.*--ntasks-per-node=1"):
        broadcast.step(environment)
    assert broadcast.step({**node.environment(), "SLURM_STEP_NUM_NODES": "1"}) is None
    said: list[str] = []
    with broadcast.together(source, {}, said.append) as fill:
        assert fill is core.copying.fill
    assert said == ["--broadcast: there are no other nodes here, so this one reads all itself"]


# --- real processes

_STAGE = """
import sys, time
from rankup.data.stage import part, pieces
pieces.PIECE = 4096
read = part.Part.read
def slow(self, piece, into):
    time.sleep(float(sys.argv[2]))
    return read(self, piece, into)
part.Part.read = slow
from rankup.data.stage.command import Request, stage
sys.exit(stage(Request((sys.argv[1],), broadcast=True), lambda job: None))
"""


@pytest.mark.slow
def test_a_node_that_is_killed_only_makes_it_slower(source: Path, tmp_path: Path) -> None:
    nodes = _nodes(3, source, tmp_path)

    def start(node: Node, pause: float) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _STAGE, str(source), str(pause)],
            env={**os.environ, **node.environment(), "RANKUP_STAGE_DIR": str(node.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    running = [start(node, 1000.0 if node.number == 1 else 0.01) for node in nodes]
    try:
        until(lambda: bool(list(tmp_path.glob(".rankup-stage-*/*/node-1.json"))))
        running[1].send_signal(signal.SIGKILL)
        for node, process in zip(nodes, running, strict=True):
            out, _ = process.communicate(timeout=200)
            if node.number != 1:
                assert process.returncode == 0, out
                assert "node n1 does not give" in out
                [copy] = node.root.glob("rankup-*/*/data/pack/train.bin")
                assert copy.read_bytes() == (source / "train.bin").read_bytes()
    finally:
        for process in running:
            process.kill()
            process.wait()
