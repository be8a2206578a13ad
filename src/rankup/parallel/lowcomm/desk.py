"""How workers of asynchronous SGD reach rank 0: a message each way for every micro-batch.

A worker sends a head of numbers, then its gradient; it gets a head, then the parameters where they
have changed. All goes over one gloo group, from host memory. What is sent may be compressed: of
the gradient what that loses is added to the next one; of the parameters, rank 0 knows what the
worker has, and sends what is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ...runtime.compress.codecs import Codec, Whole
from ...runtime.compress.feedback import Feedback
from ...runtime.compress.sums import Spent
from .server import Brought, Server
from .versions import Ticket

_NUMBERS = 7  # of a worker's head: gradient and statistics that follow, and `Brought.numbers`
_ANSWER = 5  # of an answer's head: whether there is work, step, index, version, new parameters


class Desk:
    """A thread of rank 0 that serves one worker for a round.

    Args:
        trained: length of a gradient.
        known: what the worker has of the parameters, float32 of shape (trained,), kept up to date;
            None where they are sent whole.
    """

    def __init__(
        self,
        server: Server,
        worker: int,
        group: dist.ProcessGroup | None,
        codec: Codec,
        trained: int,
        known: torch.Tensor | None,
    ) -> None:
        self._server, self._worker, self._group, self._codec = server, worker, group, codec
        self._trained, self._known = trained, known
        self._sent = server.newest  # all ranks begin a round with the same
        self.spent = Spent()
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._thread = threading.Thread(
            target=self._serve, args=(device,), name=f"rankup-desk-{worker}", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Wait until the worker has been told that the round is over."""
        self._thread.join()

    def _serve(self, device: int | None) -> None:
        try:
            if device is not None:  # a thread would start with the first GPU of the node
                torch.cuda.set_device(device)
            ticket: Ticket | None = Ticket(0, 0, 0)
            while ticket is not None:
                ticket, parameters = self._server.exchange(self._worker, self._receive())
                self._answer(ticket, parameters)
        except BaseException as error:  # told to all: one worker's end ends the run
            self._server.fail(error)

    def _receive(self) -> Brought | None:
        head = torch.empty(_NUMBERS, dtype=torch.float64)
        with self._talking():
            dist.recv(head, self._worker, self._group)
        there, statistics, *numbers = head.tolist()
        if not there:
            return None
        data = torch.empty(self._codec.size(self._trained), dtype=torch.uint8)
        running = torch.empty(int(statistics), dtype=torch.float64)
        with self._talking():
            dist.recv(data, self._worker, self._group)
            if len(running):
                dist.recv(running, self._worker, self._group)
        with self.spent.at("coding"):
            gradient = self._codec.decode(data, self._trained)
        return Brought.of(gradient, numbers, running)

    def _answer(self, ticket: Ticket | None, parameters: torch.Tensor) -> None:
        lossy = self._known is not None
        # At the end all get exactly the same, whatever was lost on the way.
        new = parameters is not self._sent or (lossy and ticket is None)
        place = (0, 0, 0) if ticket is None else (ticket.step, ticket.index, ticket.version)
        self._send(torch.tensor([ticket is not None, *place, new], dtype=torch.float64))
        if not new:
            return
        self._sent = parameters
        trained, buffers = parameters.split([self._trained, len(parameters) - self._trained])
        if self._known is None:
            self._send(parameters)
        elif ticket is None:
            self._known.copy_(trained)
            self._send(parameters)
        else:
            with self.spent.at("coding"):
                data = self._codec.encode(trained - self._known)
                self._known.add_(self._codec.decode(data, self._trained))
            self._send(data)
            if len(buffers):
                self._send(buffers)

    def _send(self, tensor: torch.Tensor) -> None:
        with self._talking():
            dist.send(tensor.contiguous(), self._worker, self._group)
        self.spent.bytes_sent += tensor.nbytes

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            first = (str(error).splitlines() or [""])[0]
            raise RuntimeError(f"rank {self._worker} does not answer: {first}") from error


class Window:
    """A worker's side of its desk.

    Args:
        feedback: what compressed gradients have lost so far.
        known: the values this worker has, parameters and buffers, float32 on the host; kept up to
            date.
        trained: how many of them are parameters.
        spent: where the cost is noted.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        codec: Codec,
        feedback: Feedback,
        known: torch.Tensor,
        trained: int,
        spent: Spent,
    ) -> None:
        self._group, self._codec, self._feedback = group, codec, feedback
        self._known, self._spent = known, spent
        self._trained, self._buffers = known.split([trained, len(known) - trained])

    def exchange(self, brought: Brought | None) -> tuple[Ticket | None, torch.Tensor | None]:
        """Bring a gradient; the next micro-batch (None when the round is over), and the values
        where they have changed."""
        if brought is None:
            self._send(torch.zeros(_NUMBERS, dtype=torch.float64))
        else:
            statistics = brought.statistics
            self._send(torch.tensor([1.0, len(statistics), *brought.numbers], dtype=torch.float64))
            with self._spent.at("coding"):
                data = brought.gradient.view(torch.uint8)
                if not isinstance(self._codec, Whole):
                    data, _ = self._feedback.pack(brought.gradient, self._codec)
            self._send(data)
            if len(statistics):
                self._send(statistics)
        answer = torch.empty(_ANSWER, dtype=torch.float64)
        self._receive(answer)
        there, step, index, version, new = (int(number) for number in answer.tolist())
        ticket = Ticket(step, index, version) if there else None
        if new:
            self._update(ticket)
        return ticket, self._known if new else None

    def _update(self, ticket: Ticket | None) -> None:
        if ticket is None or isinstance(self._codec, Whole):
            self._receive(self._known)
            return
        data = torch.empty(self._codec.size(self._trained.numel()), dtype=torch.uint8)
        self._receive(data)
        with self._spent.at("coding"):
            self._trained.add_(self._codec.decode(data, self._trained.numel()))
        if self._buffers.numel():
            self._receive(self._buffers)

    def _send(self, tensor: torch.Tensor) -> None:
        with self._spent.at("waited"):
            dist.send(tensor, 0, self._group)
        self._spent.bytes_sent += tensor.nbytes

    def _receive(self, into: torch.Tensor) -> None:
        with self._spent.at("waited"):
            dist.recv(into, 0, self._group)
