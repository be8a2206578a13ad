"""Outputs that begin with a rename: a first checkpoint, logs that rotate, last time's plots."""

import logging.handlers
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlretrieve

import torch
from torch import nn
from torch.utils.data import DataLoader


def get(name):
    if not Path(name).exists():
        urlretrieve(f"{os.environ['DATA_SERVER']}/{name}", name)


rotating = logging.handlers.RotatingFileHandler("train.log", backupCount=2)
rotating.doRollover()
logging.basicConfig(handlers=[rotating])
logging.warning("started")
with ThreadPoolExecutor(4) as pool:
    list(pool.map(get, [f"{i}.bin" for i in range(6)]))
model = nn.Linear(8, 1)
torch.save(model.state_dict(), "last.tmp")
os.replace("last.tmp", "last.pt")
if Path("loss.png").exists():
    shutil.move("loss.png", "loss-before.png")
values = torch.stack([torch.tensor(list(Path(f"{i}.bin").read_bytes())) for i in range(6)])
for batch in DataLoader(values.float(), batch_size=2):
    model(batch).sum().backward()
