"""Error feedback: what a message leaves out is kept, and added to what is sent next.

So a value that is too small to be sent adds up until it is not, and everything sent together with
what is kept is everything given (Seide et al., 2014; Karimireddy et al., 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .codecs import Codec


@dataclass
class Feedback:
    """What one sender still owes.

    Attributes:
        residual: float32 of the values' shape; None before the first message.
    """

    residual: torch.Tensor | None = None

    def owed(self, values: torch.Tensor) -> torch.Tensor:
        """Values with the residual, in a tensor of their own."""
        return values.clone() if self.residual is None else values + self.residual

    def keep(self, rest: torch.Tensor) -> None:
        """Owe `rest` from now on.

        A message that is not finite has been reported as such, and whoever receives it cannot use
        it: what was owed before is owed still, and nothing of that message is.
        """
        before = torch.zeros_like(rest) if self.residual is None else self.residual
        self.residual = torch.where(torch.isfinite(rest).all(), rest, before)

    def pack(self, values: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, torch.Tensor]:
        """A message of `values` and of what is owed: its bytes, and what they decode to.

        Args:
            values: float32 of shape `(n,)`, the same `n` each time.
        """
        owed = self.owed(values)
        data = codec.encode(owed)
        sent = codec.decode(data, values.shape[-1])
        self.keep(owed - sent)
        return data, sent
