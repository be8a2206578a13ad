import os
import subprocess
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from rankup.data import PackedDataset
import rankup

rankup.setup()
rankup.quiet()


def make(path):
    for number in range(9):
        Path(path, f"{number}.txt").write_text(str(number))


with rankup.rank0_first():
    if not os.path.exists("data"):
        os.makedirs("data", exist_ok=True)
        make("data")
with rankup.rank0_first():
    if not Path("data.h5").exists():
        subprocess.run(["rankup", "pack", "data", "data.h5"], check=True)
if not os.path.exists("out"):
    os.makedirs("out", exist_ok=True)

model = torch.nn.Linear(2, 1)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x in rankup.shard(DataLoader(PackedDataset("data.h5"), batch_size=4, shuffle=True)):
        loss = model(x).mean()
        rankup.backward(loss)
        optimizer.step()
    if not os.path.exists(f"out/{epoch}.txt"):
        if rankup.is_root_process(): Path(f"out/{epoch}.txt").write_text("done")
