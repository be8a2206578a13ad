"""Who computes what: a counter hands out shares of steps, each of them once."""

from __future__ import annotations

from typing import NamedTuple

from ...parallel.lowcomm.gossip.board import Board
from ..plan import Place, Plan, Step


class Ticket(NamedTuple):
    """A share of a step.

    Attributes:
        number: counted from 0 over this attempt of the run.
        step: the share, possibly empty.
    """

    number: int
    step: Step


class Tickets:
    """Draws tickets: number n is share n % workers of step n // workers.

    A fast worker draws more of them, and one that dies loses no more than the one it has.

    Args:
        done: steps that are done when this attempt of the run begins.
        last: number of the run's last step.
    """

    def __init__(self, board: Board, plan: Plan, done: int, last: int) -> None:
        self._board, self._plan, self._done, self._last = board, plan, done, last
        self._workers = board.workers
        self._window = plan.window()
        self._total = max(0, last - done) * self._workers

    def draw(self) -> Ticket | None:
        """The next one; None when there are no more.

        When the run is to stop, the step that was begun is still handed out, so that a next attempt
        takes up where no share is missing.
        """
        number = self._board.next_number()
        if number is None:
            drawn = self._board.drawn()
            number = drawn + self._board.next_rest()
            if number >= -(-drawn // self._workers) * self._workers:
                return None
        if number >= self._total:
            return None
        ahead, which = divmod(number, self._workers)
        step = self._plan.at(self._done + 1 + ahead, self._window)
        return Ticket(number, step.share(which, self._workers))

    def place(self) -> Place:
        """Behind the last step of which a share has been drawn.

        Shares of it that are still to be drawn would be left out by who goes on from here: rather
        that than to draw a sample twice.
        """
        drawn = min(self._board.drawn(), self._total)
        return self._plan.place(self._done + -(-drawn // self._workers))
