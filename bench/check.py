"""`rankup check`: lines per second, against bare LibCST parsing with its metadata.

Claim `check.speed`. The peer parses the same text and resolves LibCST's positions, parents, scopes
and qualified names, without looking at anything; ours parses, understands and runs every rule.
Both in one process, in turns; the text is a training script of about 500 lines.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import libcst as cst
from libcst.metadata import (
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
    ScopeProvider,
)

import common
from rankup.port.check import check_python
from rankup.port.source import from_bytes

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


def ours() -> None:
    assert check_python(from_bytes(Path("train.py"), TEXT.encode()))


def peer() -> None:
    wrapper = MetadataWrapper(cst.parse_module(TEXT), unsafe_skip_copy=True)
    providers = (PositionProvider, ParentNodeProvider, ScopeProvider, QualifiedNameProvider)
    for provider in providers:
        wrapper.resolve(provider)


def main() -> None:
    effort = common.arguments(__doc__ or "")
    lines = TEXT.count("\n")
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    contestants: dict[str, Callable[[], None]] = {"rankup check": ours, "LibCST": peer}
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(effort.rounds + 1):
        for name in random.sample(list(contestants), 2):
            start = time.perf_counter()
            contestants[name]()
            if turn:  # the first does not count
                rates[name].append(lines / (time.perf_counter() - start))
    common.table(
        ["", "lines/s", "quartiles"],
        [[name, f"{common.median(all_):.0f}", common.spread(all_)] for name, all_ in rates.items()],
    )
    print(
        json.dumps(
            {
                "claim": "check.speed",
                "ours": round(common.median(rates["rankup check"])),
                "peer": round(common.median(rates["LibCST"])),
                "unit": "lines/s",
                "better": "higher",
                "note": f"a script of {lines} lines, one process, median of {effort.rounds}",
            }
        )
    )


if __name__ == "__main__":
    main()
