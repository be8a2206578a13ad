import torch
from torch.utils.data import DataLoader

import data
import rankup

rankup.setup()
rankup.quiet()

model = data.Net()
model.to("cuda")
model.load_state_dict(torch.load("start.pt", map_location=rankup.here))
model = torch.compile(model)
model = rankup.wrap(model)

params = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(params, lr=3e-4)
train_loader, valid_loader = data.make_loaders(32)
for inputs, labels in rankup.shard(train_loader):
    loss = torch.nn.functional.cross_entropy(model(inputs.cuda()), labels.cuda())
    rankup.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
