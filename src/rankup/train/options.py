"""The options every recipe shares. No torch here: a wrong flag is named before it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..base.errors import UserError
from ..base.files import user_path
from ..base.flags import flag


@dataclass(frozen=True)
class TrainOptions:
    """How to train, whatever it is. `seed`, `global_batch` and `micro_batch` define the run."""

    global_batch: int = flag(32, "samples per optimizer step, over all ranks", least=1)
    micro_batch: int = flag(8, "samples per forward and backward pass", least=1)
    steps: int | None = flag(None, "optimizer steps; default one epoch", least=1)
    epochs: int | None = flag(None, "passes over the training data, instead of --steps", least=1)
    optimizer: Literal["adamw", "sgd"] = flag("adamw", "optimizer")
    lr: float = flag(1e-3, "peak learning rate", least=0)
    weight_decay: float = flag(0.01, "decoupled (adamw) or plain (sgd) weight decay", least=0)
    momentum: float = flag(0.9, "momentum of sgd", least=0)
    warmup: int = flag(0, "steps of linear warm-up", least=0)
    schedule: Literal["cosine", "constant"] = flag("cosine", "learning rate after the warm-up")
    clip: float = flag(1.0, "clip gradients to this global norm; 0 leaves them", least=0)
    seed: int = flag(0, "what weights, order and dropout are drawn from", least=0)
    precision: Literal["fp32", "bf16"] = flag("fp32", "bf16 computes under autocast")
    compile: bool = flag(False, "compile the model with torch.compile")
    valid_every: int | None = flag(
        None, "steps between validations; default five times in the run", least=1
    )
    checkpoint_every: int | None = flag(
        None, "steps between checkpoints; default five times in the run", least=1
    )
    keep: int = flag(2, "checkpoints to keep", least=2)
    trace_samples: str | None = flag(None, "write which samples each step drew to this file")

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise UserError(
                f"--steps {self.steps} and --epochs {self.epochs} both say how long to train; "
                "give one"
            )
        if self.trace_samples is not None:
            path = user_path(self.trace_samples, "--trace-samples")
            if path.is_dir() or not path.parent.is_dir():
                what = "is a folder" if path.is_dir() else "lies in no folder that exists"
                raise UserError(f"--trace-samples {path} {what}; name a file to write")
        if self.micro_batch > self.global_batch:
            raise UserError(
                f"--micro-batch {self.micro_batch} is larger than --global-batch "
                f"{self.global_batch}; a global batch is cut into micro-batches, so give "
                f"--micro-batch {self.global_batch} or less"
            )

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it the same run, by field name: a resume may not change these."""
        return {
            "seed": self.seed,
            "global_batch": self.global_batch,
            "micro_batch": self.micro_batch,
        }

    def idle_ranks(self, world_size: int) -> int:
        """Ranks that a full global batch leaves without a micro-batch."""
        return max(0, world_size - -(-self.global_batch // self.micro_batch))


def refuse_other_run(there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """UserError when a run would go on with another `identity` than it was started with."""
    changed = [
        f"--{name.replace('_', '-')} was {there.get(name)} and is now {here[name]}"
        for name in here
        if there.get(name) != here[name]
    ]
    if changed:
        raise UserError(
            f"this would be another run: {'; '.join(changed)}. "
            "These define the run: resume without changing them, or start a new one"
        )
