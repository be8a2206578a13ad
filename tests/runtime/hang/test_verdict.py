"""What is said of a hang, from states made by hand."""

from __future__ import annotations

from dataclasses import replace

from rankup.runtime.hang.state import Call, Line, State, from_json, own_line, to_json
from rankup.runtime.hang.verdict import verdict

TORCH = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
REDUCE = Call("all_reduce", "0", "all ranks", (0, 1, 2, 3), 12, "float32 [7]", 100.0, 600.0)
TENSOR = Call("all_gather", "3", "tp", (2, 3), 40, "float32 [2]", 90.0, 600.0)
CODE = {"torch": "2.13.0", "the script": "aa"}


def _state(rank: int, calls: tuple[Call, ...], line: int, counts: dict[str, int]) -> State:
    stack = (
        Line("/home/me/train.py", line, "step", f"line{line}()"),
        Line(TORCH, 3252, "all_reduce", "work.wait()"),
    )
    return State(rank, f"n{rank // 2}", calls, counts, stack, CODE)


def _waits(rank: int, call: Call = REDUCE, line: int = 29) -> State:
    return _state(rank, (call,), line, {call.group: call.number})


def _last(states: list[State]) -> str:
    return verdict({state.rank: state for state in states}, 4).splitlines()[-1]


def test_a_rank_that_did_not_arrive() -> None:
    away = _state(1, (), 17, {"0": 11})
    text = verdict({s.rank: s for s in [_waits(0), away, _waits(2), _waits(3)]}, 4)
    assert text.splitlines() == [
        "rank 1 on n0 stands at, the innermost line first:",
        f'  File "{TORCH}", line 3252, in all_reduce',
        "    work.wait()",
        '> File "/home/me/train.py", line 17, in step',
        "    line17()",
        "hang: all_reduce (float32 [7]), number 12 of all ranks did not end within 600 s; "
        "ranks 0, 2-3 wait in it at train.py:29 in step; "
        "rank 1 on n0 did not arrive: it is at train.py:17 in step",
    ]


def test_a_rank_that_does_not_answer() -> None:
    last = _last([_waits(0), _waits(1), _waits(3)])
    assert last.endswith(
        "; ranks 0-1, 3 wait in it at train.py:29 in step; "
        "rank 2 did not answer: stopped, dead or stuck in native code"
    )


def test_another_operation_at_the_same_place() -> None:
    other = _waits(1, replace(REDUCE, operation="broadcast", since=101.0), 31)
    last = _last([_waits(0), other, _waits(2), _waits(3)])
    assert "ranks 0, 2-3 wait in it at train.py:29" in last
    assert last.endswith("rank 1 on n0 is in broadcast (float32 [7]) at train.py:31 in step")


def test_another_shape() -> None:
    other = _waits(1, replace(REDUCE, tensors="float32 [8]", since=101.0))
    last = _last([_waits(0), other, _waits(2), _waits(3)])
    assert "rank 1 on n0 is in all_reduce (float32 [8]) at train.py:29" in last


def test_a_rank_that_has_left_it_behind() -> None:
    """The source of a broadcast does not wait for those it sends to."""
    ahead = _state(1, (), 50, {"0": 13})
    last = _last([_waits(0), ahead, _waits(2), _waits(3)])
    assert last.endswith("rank 1 on n0 has left it behind and is at train.py:50 in step")


def test_the_rank_at_the_root_of_a_chain() -> None:
    """0 and 1 wait for 2, which waits in its own group for 3, which is asleep."""
    states = [_waits(0), _waits(1), _waits(2, TENSOR, 33), _state(3, (), 17, {"3": 39, "0": 11})]
    last = _last(states)
    assert last.startswith("hang: all_gather (float32 [2]), number 40 of group tp (ranks 2-3)")
    assert "rank 2 waits in it" in last
    assert last.endswith("rank 3 on n1 did not arrive: it is at train.py:17 in step")


def test_everybody_is_there() -> None:
    last = _last([_waits(rank) for rank in range(4)])
    assert last.endswith("all its ranks are in it: the network or the backend does not go on")


def test_other_code_is_said() -> None:
    away = replace(_state(1, (), 17, {"0": 11}), code={**CODE, "the script": "bb"})
    text = verdict({s.rank: s for s in [_waits(0), away, _waits(2), _waits(3)]}, 4)
    assert (
        "the ranks run different code: the script is aa on most ranks, but not on rank 1 on n0 (bb)"
    ) in text


def test_through_the_store_and_back() -> None:
    state = _waits(2)
    assert from_json(to_json(state)) == state


def test_the_line_of_the_user() -> None:
    stack = _waits(0).stack
    assert own_line(stack) == stack[0]
    assert own_line(stack[1:]) == stack[1], "where there is none, what there is"
    assert own_line(()) is None
