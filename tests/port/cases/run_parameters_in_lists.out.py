import argparse

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
import rankup

rankup.setup()
rankup.quiet()

parser = argparse.ArgumentParser()
parser.add_argument("--optim", default="SGD")
args = parser.parse_args()

torch.manual_seed(1)
x = torch.randn(22, 4)
loader = rankup.shard(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6, shuffle=True))
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
model = rankup.wrap(model)
decay, no_decay = [], []
for name, parameter in model.named_parameters():
    if name.endswith("bias"):
        no_decay.append(parameter)
    else:
        decay.append(parameter)
groups = [{"params": decay, "weight_decay": 0.01}, {"params": no_decay}]
optimizer = getattr(optim, args.optim)(groups, lr=0.1)
for epoch in range(2):
    for inputs, targets in loader:
        loss = (model(inputs) - targets).pow(2).mean()
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
        print(epoch, loss.item())
