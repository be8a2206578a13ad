"""What a hang was, from what each rank was doing: who waits where, and for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .state import Call, Line, State, differing, own_line

_NAMED = 8  # ranks that are listed one by one
_SHOWN = 4  # ranks whose stacks are shown


@dataclass(frozen=True)
class Finding:
    """One collective that does not end.

    Attributes:
        call: as the first of those that wait in it sees it.
        waiting: ranks in it.
        others: members that are in another operation of the group, at the same place in its order
            or past it.
        absent: members that have not arrived.
        silent: members that did not answer at all.
    """

    call: Call
    waiting: tuple[int, ...]
    others: tuple[int, ...]
    absent: tuple[int, ...]
    silent: tuple[int, ...]


def verdict(states: Mapping[int, State], world_size: int, *, timed_out: bool = True) -> str:
    """The last words on a hang, of several lines; the last one says the most.

    Args:
        states: of the ranks that answered, at least one of them in a collective.
        timed_out: False where the job's time limit comes first.
    """
    finding = _choose(states, world_size)
    at_fault = (*finding.absent, *finding.others)
    parts = [_stack(states[rank]) for rank in at_fault[:_SHOWN]]
    if not at_fault and finding.waiting:  # no one is missing: where those wait says the rest
        parts = [_stack(states[rank]) for rank in finding.waiting[:2]]
    code = differing([(states[rank].node, states[rank].code) for rank in sorted(states)])
    if code and len(states) == world_size:
        parts.append(f"the ranks run different code: {code}")
    return "\n".join([*parts, _sentence(finding, states, timed_out)])


def find(states: Mapping[int, State], call: Call, world_size: int) -> Finding:
    """Where each member of the call's group is."""
    waiting, others, absent, silent = [], [], [], []
    for rank in call.ranks or range(world_size):
        state = states.get(rank)
        if state is None:
            silent.append(rank)
        elif _in(state, call):
            waiting.append(rank)
        elif _elsewhere(state, call):
            others.append(rank)
        else:
            absent.append(rank)
    return Finding(call, tuple(waiting), tuple(others), tuple(absent), tuple(silent))


def _choose(states: Mapping[int, State], world_size: int) -> Finding:
    """The collective at the root: ranks may wait for one that waits for a third."""
    calls: dict[tuple[str, tuple[int, ...], int, str], Call] = {}
    for state in states.values():
        for call in state.calls[:1]:  # later ones queue behind the first
            key = (call.group, call.ranks, call.number, call.operation)
            if key not in calls or call.since < calls[key].since:
                calls[key] = call
    findings = [find(states, call, world_size) for call in calls.values()]

    def order(finding: Finding) -> tuple[bool, int, int, float]:
        free = [rank for rank in finding.absent if not states[rank].calls]
        chained = len(free) < len(finding.absent)
        kinds = (free, finding.silent, finding.others, finding.absent)
        rank = next((number for number, ranks in enumerate(kinds) if ranks), len(kinds))
        return chained, rank, -len(finding.waiting), finding.call.since

    return min(findings, key=order)


def _in(state: State, call: Call) -> bool:
    return any(
        (other.group, other.ranks, other.number, other.operation)
        == (call.group, call.ranks, call.number, call.operation)
        and (other.tensors == call.tensors or not _same_shapes(call.operation))
        for other in state.calls
    )


def _elsewhere(state: State, call: Call) -> bool:
    """Whether a rank is in another operation of the same group, or beyond this one."""
    if call.number < 0:
        return False
    same = [other for other in state.calls if (other.group, other.ranks) == _group(call)]
    if any(other.number >= call.number for other in same):
        return True
    return not same and state.counts.get(call.group, 0) >= call.number


def _group(call: Call) -> tuple[str, tuple[int, ...]]:
    return call.group, call.ranks


def _same_shapes(operation: str) -> bool:
    """Operations into which every rank must give the same shapes."""
    return "all_reduce" in operation or "broadcast" in operation or "allreduce" in operation


def _sentence(finding: Finding, states: Mapping[int, State], timed_out: bool) -> str:
    call = finding.call
    what = call.operation + (f" ({call.tensors})" if call.tensors else "")
    which = f", number {call.number} of {_of(call)}" if call.number >= 0 else ""
    ended = f"did not end within {call.timeout:g} s" if timed_out else "has not ended"
    parts = [f"hang: {what}{which} {ended}"]
    if finding.waiting:
        verb = "waits" if len(finding.waiting) == 1 else "wait"
        parts.append(f"{_ranks(finding.waiting)} {verb} in it{_where(finding, states)}")
    parts += [_told(states[rank], call) for rank in finding.others[:_NAMED]]
    parts += [_missing(states[rank]) for rank in finding.absent[:_NAMED]]
    left = len(finding.others[_NAMED:]) + len(finding.absent[_NAMED:])
    if left:
        parts.append(f"{left} more ranks are not in it")
    if finding.silent:
        parts.append(
            f"{_ranks(finding.silent)} did not answer: stopped, dead or stuck in native code"
        )
    if not (finding.others or finding.absent or finding.silent):
        parts.append("all its ranks are in it: the network or the backend does not go on")
    return "; ".join(parts)


def _told(state: State, call: Call) -> str:
    """One that is in another operation of the group."""
    same = [other for other in state.calls if _group(other) == _group(call)]
    if not same:
        return f"{_on(state)} has left it behind and is{_at(own_line(state.stack))}"
    other = same[0]
    tensors = f" ({other.tensors})" if other.tensors else ""
    number = "" if other.number == call.number else f", number {other.number}"
    return f"{_on(state)} is in {other.operation}{tensors}{number}{_at(own_line(state.stack))}"


def _missing(state: State) -> str:
    """One that is elsewhere."""
    came = f"{_on(state)} did not arrive"
    line = own_line(state.stack)
    if state.calls:
        call = state.calls[0]
        return f"{came}: it waits in {call.operation} of {_of(call)}{_at(line)}"
    return f"{came}: it is{_at(line)}" if line else came


def _where(finding: Finding, states: Mapping[int, State]) -> str:
    places = {_at(own_line(states[rank].stack)) for rank in finding.waiting}
    return places.pop() if len(places) == 1 else ""


def _at(line: Line | None) -> str:
    if line is None:
        return ""
    name = line.file.rpartition("/")[2]
    function = f" in {line.function}" if line.function != "<module>" else ""
    return f" at {name}:{line.number}{function}"


def _of(call: Call) -> str:
    if not call.label or call.label == "all ranks":
        return call.label or "its group"
    return f"group {call.label} ({_ranks(call.ranks)})" if call.ranks else f"group {call.label}"


def _on(state: State) -> str:
    return f"rank {state.rank} on {state.node}"


def _ranks(ranks: Sequence[int]) -> str:
    """`ranks 0-3, 5`: runs of numbers together."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(texts)


def _stack(state: State) -> str:
    """A stack as people read it for this purpose: the user's innermost line in front."""
    own = own_line(state.stack)
    lines = [f"{_on(state)} stands at, the innermost line first:"]
    for line in reversed(state.stack):
        mark = ">" if line == own else " "
        lines.append(f'{mark} File "{line.file}", line {line.number}, in {line.function}')
        if line.text:
            lines.append(f"    {line.text}")
    return "\n".join(lines)
