import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

torch.manual_seed(3)
x = torch.randn(22, 5)
y = (x.sum(1) > 0).long()
import csv
import logging
import os
from pathlib import Path

loader = rankup.shard(DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True))
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
os.makedirs("out", exist_ok=True)
Path("out/more").mkdir(parents=True, exist_ok=True)
logging.basicConfig(level=logging.INFO)
log = open(rankup.path0("out/log.csv"), "w")
writer = csv.writer(log)
for epoch in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        rankup.backward(loss)
        optimizer.step()
    writer.writerow([epoch, loss.item()])
    with open(rankup.path0("out/text.txt"), "a") as file:
        file.write(f"{epoch}\n")
    logging.info("epoch %d loss %f", epoch, loss.item())
log.close()
rankup.barrier()
print(Path("out/text.txt").read_text().split(), len(Path("out/log.csv").read_text().splitlines()))
if rankup.is_root_process(): os.remove("out/text.txt")
rankup.barrier()
