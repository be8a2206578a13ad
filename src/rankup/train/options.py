"""The options every recipe shares. No torch here: a wrong flag is named before it is imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from ..base.errors import UserError, nearest
from ..base.files import user_path
from ..base.flags import flag
from ..parallel.choices import Choices, Half, check, without_effect
from ..parallel.layout import SELDOM, Layout, choose
from ..runtime.compression import Compression, parse
from . import trackers

_MOST_PROFILED = 50  # steps
_HALF: dict[str, Half] = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class TrainOptions:
    """How to train, whatever it is. `seed`, `global_batch` and `micro_batch` define the run."""

    global_batch: int = flag(32, "samples per optimizer step, over all ranks", least=1)
    micro_batch: int = flag(8, "samples per forward and backward pass", least=1)
    steps: int | None = flag(None, "optimizer steps; default one epoch", least=1)
    epochs: int | None = flag(None, "passes over the training data, instead of --steps", least=1)
    optimizer: Literal["adamw", "sgd", "muon"] = flag(
        "adamw", "optimizer; muon: of the blocks' matrices, the rest has adamw"
    )
    lr: float = flag(1e-3, "peak learning rate", least=0)
    weight_decay: float = flag(0.01, "decoupled (adamw, muon) or plain (sgd) weight decay", least=0)
    momentum: float = flag(0.9, "momentum of sgd and muon, first beta of adamw", least=0)
    warmup: int = flag(0, "steps of linear warm-up", least=0)
    schedule: Literal["cosine", "wsd", "constant"] = flag(
        "cosine", "learning rate after the warm-up; wsd: stable, then --decay"
    )
    decay: float = flag(
        0.2, "--schedule wsd: last part of the run, or steps, in which it falls to 0", least=0
    )
    clip: float = flag(1.0, "clip gradients to this global norm; 0 leaves them", least=0)
    freeze: str | None = flag(
        None, "parameters that are not trained, by name: PATTERN[,PATTERN], as tokens.*"
    )
    ema: float | None = flag(
        None, "keep a moving average of the weights, of this decay, and evaluate it, too", least=0
    )
    seed: int = flag(0, "what weights, order and dropout are drawn from", least=0)
    precision: Literal["fp32", "bf16", "fp16"] = flag(
        "fp32", "bf16, fp16: compute in 16 bits, weights stay in 32; fp16 for GPUs before A100"
    )
    compile: bool = flag(False, "compile the model with torch.compile")
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = flag(
        "default", "how --compile compiles: with CUDA graphs, or after trying kernels"
    )
    tf32: bool = flag(False, "float32 products in TF32, of 10 bits, on GPUs from A100 on")
    deterministic: bool = flag(False, "the same bits in each run of one layout, at some speed")
    valid_every: int | None = flag(
        None, "steps between validations; default five times in the run", least=1
    )
    checkpoint_every: int | None = flag(
        None, "steps between checkpoints; default five times in the run", least=1
    )
    keep: int = flag(2, "checkpoints to keep", least=2)
    log: str | None = flag(
        None, "show the metrics live as well: tensorboard, wandb, or both with a comma between them"
    )
    profile: str | None = flag(
        None, "run these steps (20:25, both included) under torch's profiler, a rank of each node"
    )
    trace_samples: str | None = flag(None, "write which samples each step drew to this file")
    strategy: Literal["ddp", "fsdp", "hsdp", "tp", "pp", "3d", "local-sgd", "diloco"] | None = flag(
        None, "how ranks share the model and the work; default ddp"
    )
    dp: int | None = flag(None, "copies of the model (data parallel)", least=1)
    shard: int | None = flag(None, "ranks that share one copy (fully sharded)", least=1)
    cp: int | None = flag(None, "ranks that share each sequence (context parallel)", least=1)
    tp: int | None = flag(None, "ranks that share each matrix product (tensor parallel)", least=1)
    pp: int | None = flag(None, "pipeline stages that the layers are cut into", least=1)
    pp_schedule: str = flag("1f1b", "order of a pipeline's chunks: gpipe, 1f1b, interleaved")
    activation_checkpointing: Literal["none", "selective", "selective:2", "full"] = flag(
        "none",
        "compute activations again in the backward: of all blocks; selective keeps their matrix "
        "products, selective:2 leaves every second block as it is",
    )
    offload: bool = flag(False, "keep sharded weights and optimizer state in host memory")
    zero: Literal["1", "2", "3"] = flag(
        "3",
        "with --shard: 2 keeps gathered weights for a step, 1 adds gradients up in its last pass",
    )
    async_checkpoints: bool = flag(True, "write checkpoints beside the training")
    sync_every: str = flag("10", "steps between exchanges of local-sgd and diloco, or `epoch`")
    outer_lr: float = flag(0.7, "step size of diloco's outer optimizer", least=0)
    outer_momentum: float = flag(0.9, "Nesterov momentum of diloco's outer optimizer", least=0)
    compress: str = flag(
        "none",
        "what is sent of gradients: none (all of them), bf16 (sharded or of a model in 16 bits: in "
        "every micro-batch), or powersgd[:RANK] under ddp",
    )

    tiny: bool = flag(False, "a smaller run of a minute, for what is not said otherwise")

    # What --tiny stands for, by field.
    TINY: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def preset(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Defaults that stand in for what was not said, for `flags.parse`."""
        if not values["tiny"]:
            return {}
        # Its steps would contradict epochs.
        return {n: v for n, v in cls.TINY.items() if n != "steps" or values["epochs"] is None}

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
        self._refuse_profile()
        for name in self.trackers:
            if name not in trackers.PACKAGES:
                raise UserError(f"--log {name}: {nearest(name, trackers.PACKAGES)}")
        try:
            parse(self.compress)
        except ValueError as error:
            raise UserError(f"--compress {error}") from None
        if self.sync_every != "epoch" and not re.fullmatch(r"[1-9]\d{0,8}", self.sync_every):
            raise UserError(
                f"--sync-every {self.sync_every} is neither a number of steps nor `epoch`"
            )
        apart = self.strategy in SELDOM
        if self.precision == "fp16" and (apart or parse(self.compress)):
            what = f"--strategy {self.strategy}" if apart else f"--compress {self.compress}"
            raise UserError(
                f"--precision fp16 leaves out a step whose gradient overflows, on all ranks, and "
                f"{what} cannot take it back; give --precision bf16, or leave {what} away"
            )
        if self.ema is not None and not 0 < self.ema < 1:
            raise UserError(
                f"--ema {self.ema:g} is the part of the average that a step leaves; give more than "
                "0 and less than 1, 0.999 for example"
            )
        if self.ema is not None and apart:
            raise UserError(
                f"--ema averages weights that all ranks have alike after each step, and the copies "
                f"of --strategy {self.strategy} differ between their exchanges; leave one away"
            )
        if self.decay <= 0 or (self.decay > 1 and self.decay % 1):
            raise UserError(
                f"--decay {self.decay:g} is neither a part of the run, more than 0 and less than "
                "1, nor a whole number of steps; give 0.1 or 500, for example"
            )
        if self.schedule == "wsd" and self.steps is not None and self.decay > self.steps:
            raise UserError(
                f"--decay {self.decay:g} steps are more than the run's --steps {self.steps}; give "
                "fewer, or a part of the run, 0.2 for example"
            )
        if self.outer_momentum >= 1:
            raise UserError(
                f"--outer-momentum {self.outer_momentum:g} never forgets; give less than 1, "
                "0.9 for example"
            )
        if self.optimizer != "sgd" and self.momentum >= 1:
            raise UserError(
                f"--momentum {self.momentum:g} is adamw's first beta, and with 1 or more it never "
                "takes a gradient in; give less than 1, 0.9 for example"
            )
        if self.micro_batch > self.global_batch:
            raise UserError(
                f"--micro-batch {self.micro_batch} is larger than --global-batch "
                f"{self.global_batch}; a global batch is cut into micro-batches, so give "
                f"--micro-batch {self.global_batch} or less"
            )

    @property
    def trackers(self) -> tuple[str, ...]:
        """Return what gets the metrics beside `metrics.jsonl`."""
        return tuple(self.log.split(",")) if self.log else ()

    def need_packages(self) -> None:
        """UserError where a package that the options need is not installed."""
        for name in self.trackers:
            trackers.need_package(f"--log {name}", *trackers.PACKAGES[name])

    def _refuse_profile(self) -> None:
        if self.profile is None:
            return
        first, last = self.profiled or (0, 0)
        if not 1 <= first <= last:
            raise UserError(
                f"--profile {self.profile} names no steps; give the first and the last, 20:25 for "
                "example"
            )
        if last - first >= _MOST_PROFILED:
            raise UserError(
                f"--profile {self.profile} is of {last - first + 1} steps, whose trace no viewer "
                f"opens; give at most {_MOST_PROFILED}"
            )
        if self.steps is not None:
            self.refuse_profile_beyond(self.steps)

    def refuse_profile_beyond(self, steps: int) -> None:
        """UserError where the steps to profile do not lie in a run of so many."""
        if self.profiled is not None and self.profiled[1] > steps:
            raise UserError(
                f"--profile {self.profile} lies beyond the run, which has {steps} steps; give "
                "steps of it"
            )

    @property
    def profiled(self) -> tuple[int, int] | None:
        """Return the first and the last step to profile; None where none are, or not one."""
        found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", self.profile or "")
        return (int(found[1]), int(found[2])) if found else None

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it the same run, by field name: a resume may not change these."""
        return {
            "seed": self.seed,
            "global_batch": self.global_batch,
            "micro_batch": self.micro_batch,
        }

    def layout(self, world_size: int, per_node: int) -> Layout:
        """How the ranks share the model.

        Raises:
            UserError: the sizes do not make up the world, or an option does not go with them.
        """
        found = choose(
            world_size,
            per_node,
            self.strategy,
            dp=self.dp,
            shard=self.shard,
            cp=self.cp,
            tp=self.tp,
            pp=self.pp,
            fits=self.fits,
        )
        check(found, self.choices, self.strategy)
        return found

    @property
    def choices(self) -> Choices:
        """Return the choices by which a model is built on the layout."""
        return Choices(
            half=_HALF.get(self.precision),
            compiled=self.compile_mode if self.compile else None,
            recompute=self.activation_checkpointing,
            offload=self.offload,
            zero=int(self.zero),
            schedule=self.pp_schedule,
            compression=self.compression,
        )

    @property
    def compression(self) -> Compression:
        """What ranks send each other of gradients."""
        return parse(self.compress)

    @property
    def apart(self) -> bool:
        """Whether copies of the model train by themselves between exchanges."""
        return self.strategy in SELDOM

    def fits(self, layout: Layout) -> bool:
        """Whether the model can be split so, as far as its options tell."""
        return True

    def notes(self, layout: Layout) -> list[str]:
        """What was asked for and does nothing, or costs more than it seems."""
        found = without_effect(layout, self.choices)
        if self.compile_mode != "default" and not self.compile:
            found.append(f"--compile-mode {self.compile_mode} does nothing without --compile")
        if self.decay != 0.2 and self.schedule != "wsd":
            found.append(f"--decay {self.decay:g} does nothing without --schedule wsd")
        if self.ema is not None and self.steps is not None and self.steps * (1 - self.ema) < 1:
            found.append(
                f"--ema {self.ema:g} averages over about {1 / (1 - self.ema):,.0f} steps, and the "
                f"run has {self.steps:,}: the average stays near the weights it begins with"
            )
        found += self._without_effect()
        chunks = -(-self.global_batch // self.micro_batch) // layout.data_size
        if chunks < layout.pp > 1:
            found.append(
                f"each pipeline has {max(1, chunks)} micro-batches at a time for {layout.pp} "
                "stages, so most stages wait; a smaller --micro-batch fills it"
            )
        return found

    def _without_effect(self) -> list[str]:
        """Options of the strategies that talk seldom, given to another."""
        belongs = {
            "sync_every": SELDOM,
            "outer_lr": ("diloco",),
            "outer_momentum": ("diloco",),
        }
        defaults = {field.name: field.default for field in fields(self)}
        return [
            f"--{name.replace('_', '-')} does nothing without --strategy {' or '.join(strategies)}"
            for name, strategies in belongs.items()
            if getattr(self, name) != defaults[name] and self.strategy not in strategies
        ]

    def idle_ranks(self, layout: Layout) -> int:
        """Ranks that a full global batch leaves without a micro-batch."""
        micro_batches = -(-self.global_batch // self.micro_batch)
        return max(0, layout.data_size - micro_batches) * layout.pp * layout.cp * layout.tp


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
