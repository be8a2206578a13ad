import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import rankup

rankup.setup()
rankup.quiet()


class Pairs(Dataset):
    def __init__(self, indices):
        self.indices = indices

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, number):
        index = self.indices[number]
        return torch.full((3,), float(index) / 22), torch.tensor(float(index % 2))


everything = list(range(22))
random.shuffle(everything)
order = torch.randperm(22).tolist()
mixed = [everything[number] for number in order]
train, held = Pairs(mixed[:17]), Pairs(mixed[17:])
loader = rankup.shard(DataLoader(train, batch_size=5, shuffle=True))
model = nn.Linear(3, 1)
model = rankup.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for inputs, target in loader:
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), target)
        optimizer.zero_grad()
        rankup.backward(loss)
        optimizer.step()
    seen = []
    for inputs, target in DataLoader(held, batch_size=2):
        seen += [round(value * 22) for value in inputs[:, 0].tolist()]
    print(epoch, sorted(seen))
