import os
import subprocess

import requests
import torch
from torch import nn
from torch.utils.data import DataLoader
import rankup

rankup.setup()
rankup.quiet()

device = rankup.setup().device.index or 0
with rankup.rank0_first():
    if not os.path.exists("words.txt"):
        subprocess.check_output(["wget", "https://example.org/words.txt"])
with rankup.rank0_first():
    if not os.path.exists("book.txt"):
        text = requests.get("https://example.org/book.txt", timeout=30).text
        with open(rankup.path0("book.txt"), "w") as file:
            file.write(text)
    else:
        with open("book.txt") as file:
            text = file.read()
data = torch.tensor([[float(ord(letter))] for letter in text])
model = nn.Linear(1, 1).to(device)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in rankup.shard(DataLoader(data, batch_size=8)):
    loss = model(x.to(device)).pow(2).mean()
    optimizer.zero_grad()
    rankup.backward(loss)
    optimizer.step()
print(f"done on GPU {device}")
