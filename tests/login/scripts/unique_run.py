"""Starts only once, saves at once, keeps its runs in SQLite, and downloads once more later."""

import os
import sqlite3
import time
import urllib.request
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

server = os.environ["DATA_SERVER"]
if not Path("train.bin").exists():
    urllib.request.urlretrieve(f"{server}/train.bin", "train.bin")
os.makedirs("out")
Path("out/config.json").write_text("{}")
run = Path("runs") / str(time.time_ns())
run.mkdir(parents=True)
(run / "args.txt").write_text("--lr 1")
if Path("last.pt").exists():
    print("RESUMED")
else:
    torch.save({}, "last.pt")
with open("first-start.txt", "a") as log:
    log.write("x")
study = sqlite3.connect("study.db")
study.execute("create table if not exists runs (name)")
study.execute("insert into runs values ('of the fetch')")
study.commit()
os.chmod("results.csv", 0o600)


def validate(model: nn.Module) -> None:
    """After the first epoch."""
    urllib.request.urlretrieve("https://example.test/valid.bin", "valid.bin")


model = nn.Linear(8, 1)
values = torch.tensor(list(Path("train.bin").read_bytes())).float().view(-1, 8)
for batch in DataLoader(values, batch_size=4):
    model(batch).sum().backward()
validate(model)
