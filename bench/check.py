"""Lines per second of `rankup check`, against bare LibCST parsing with its metadata.

Claim `check.speed`. The peer parses the same text and resolves LibCST's positions, parents, scopes
and qualified names, without looking at anything; ours parses, understands and runs every rule.
Both in one process, in turns; the text is a training script of about 500 lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import (
    BENCH,
    claim,
    enter_environment,
    machine,
    median,
    paired,
    parse_effort,
    spread,
    table,
    take_turns,
)
from rankup.port.check import check_python
from rankup.script.source import from_bytes

VENV = BENCH / ".venv-check"
PEERS = ("libcst==1.9.0",)
_STEP = '''

def train_{k}(model, loader, optimizer, device, epoch):
    """One epoch."""
    model.train()
    total, seen = 0.0, 0
    for step, (inputs, labels) in enumerate(loader):
        inputs, labels = inputs.to(device), labels.to(device)
        outputs = model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        seen += len(labels)
        if step % 10 == 0:
            print(f"epoch {{epoch}} step {{step}} loss {{loss.item():.4f}}")
    torch.save(model.state_dict(), f"model_{k}.pt")
    return total / seen
'''
_HEAD = "import torch\nfrom torch.utils.data import DataLoader\n"
_TAIL = """

def main():
    model = Net().cuda()
    loader = DataLoader(data, batch_size=32, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        train_0(model, loader, optimizer, "cuda", epoch)
"""
TEXT = _HEAD + "".join(_STEP.format(k=k) for k in range(24)) + _TAIL
LINES = TEXT.count("\n")


def ours() -> None:
    assert check_python(from_bytes(Path("train.py"), TEXT.encode()))


def peer() -> None:
    import libcst
    from libcst import metadata

    wrapper = metadata.MetadataWrapper(libcst.parse_module(TEXT), unsafe_skip_copy=True)
    for provider in (
        metadata.PositionProvider,
        metadata.ParentNodeProvider,
        metadata.ScopeProvider,
        metadata.QualifiedNameProvider,
    ):
        wrapper.resolve(provider)


def rate(contestant: Callable[[], None]) -> float:
    """Return the lines per second of one pass."""
    start = time.perf_counter()
    contestant()
    return LINES / (time.perf_counter() - start)


def main() -> None:
    effort = parse_effort(__doc__ or "")
    enter_environment(VENV, PEERS, torch=False)
    print(machine("libcst") + "\n")
    contestants = {"rankup check": partial(rate, ours), "LibCST": partial(rate, peer)}
    rates = take_turns(contestants, effort.rounds)
    rows = [[name, f"{median(all_):.0f}", spread(all_, 0)] for name, all_ in rates.items()]
    table(["", "lines/s", "quartiles"], rows)
    mine, theirs = rates.values()
    note = (
        f"a script of {LINES} lines, one process; median of {effort.rounds} turns; paired "
        f"{paired(mine, theirs, 2)}"
    )
    print(claim("check.speed", median(mine), median(theirs), "lines/s", note))


if __name__ == "__main__":
    main()
