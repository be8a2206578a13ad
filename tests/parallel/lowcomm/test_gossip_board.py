"""What workers tell each other through the store; how they meet at the end; who is silent."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

from rankup.parallel.lowcomm.gossip.alive import Silence
from rankup.parallel.lowcomm.gossip.board import Board
from rankup.parallel.lowcomm.gossip.meet import Meeting


@pytest.fixture
def served() -> tuple[dist.TCPStore, str]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return store, f"127.0.0.1:{store.port}"


def test_numbers_end_with_the_round_that_was_begun(served: tuple[dist.TCPStore, str]) -> None:
    board = Board(served[0], 3)
    board.prepare()
    assert [board.next_number() for _ in range(4)] == [0, 1, 2, 3]
    board.close()
    board.close()  # a second worker wishes it too
    assert board.next_number() is None
    assert board.drawn() == 4
    assert [board.next_rest() for _ in range(2)] == [0, 1]


def test_status(served: tuple[dist.TCPStore, str]) -> None:
    board = Board(served[0], 2)
    board.prepare()
    board.set("lost/1", "it was killed")
    board.set("beat/0", "7")
    assert board.swap("speaker", "0", "1") == "1"
    status = board.status()
    assert (status.lost, status.beats, status.speaker) == ({1: "it was killed"}, (7, 0), 1)
    assert (status.ended, status.abort) == ("", 0)
    board.wish(end=True)
    board.wish(end=False)
    assert board.get("wish") == "end"


def test_silence_is_a_count_that_stands_still() -> None:
    silence = Silence(10)
    assert silence.of((1, 0), 0) == frozenset()
    assert silence.of((2, 0), 9) == frozenset()
    assert silence.of((2, 0), 20) == {0}, "who has not begun is not silent"
    assert silence.of((3, 0), 21) == frozenset()
    silence.forgive(100)
    assert silence.of((3, 0), 105) == frozenset()


def test_all_that_are_left_meet_in_the_speaker(served: tuple[dist.TCPStore, str]) -> None:
    """Worker 2 comes empty-handed, worker 3 is gone: the mean is over 0 and 1."""
    Board(served[0], 4).prepare()
    ends: dict[int, str] = {}

    def meeting(worker: int) -> Meeting:
        board = Board.connect(served[1], 4)
        return Meeting(board, served[1], worker, lambda: frozenset({3}), 0.0)

    def come(worker: int, values: torch.Tensor | None) -> None:
        ends[worker] = meeting(worker).hand_over(values)

    threads = [
        threading.Thread(target=come, args=args) for args in ((1, torch.full((5,), 3.0)), (2, None))
    ]
    for thread in threads:
        thread.start()
    speaker = meeting(0)
    mean, came = speaker.gather(torch.ones(5))
    assert came == [0, 1]
    assert torch.equal(mean, torch.full((5,), 2.0))
    assert speaker.bytes_sent == 20
    Board(served[0], 4).set("ended", "finished")
    for thread in threads:
        thread.join(20)
    assert ends == {1: "finished", 2: "finished"}


def test_a_speaker_whose_values_are_old_gives_them_only_where_nobody_else_comes(
    served: tuple[dist.TCPStore, str],
) -> None:
    board = Board(served[0], 2)
    board.prepare()
    alone = Meeting(board, served[1], 0, lambda: frozenset({1}), 0.0)
    mean, came = alone.gather(torch.ones(3), old=True)
    assert (mean.tolist(), came) == ([1, 1, 1], [0])

    def come() -> None:
        other = Board.connect(served[1], 2)
        Meeting(other, served[1], 1, frozenset, 0.0).hand_over(torch.full((3,), 4.0))

    thread = threading.Thread(target=come)
    thread.start()
    mean, came = Meeting(board, served[1], 0, frozenset, 0.0).gather(torch.ones(3), old=True)
    board.set("ended", "finished")
    thread.join(20)
    assert (mean.tolist(), came) == ([4, 4, 4], [1])
